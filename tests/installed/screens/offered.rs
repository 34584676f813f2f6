//! The commands that a screen offers: they must work as they are printed, or at least be understood.

use super::place::Place;

/// The commands of zprobe after these words at the beginning of a line are there to be typed.
const WORDS: [&str; 2] = ["next: ", "again: "];

/// The commands that only show something, and are typed.
const SHOWING: [&str; 3] = ["show", "explain", "list"];

/// The commands that a screen offers and that zprobe refuses, each with what zprobe says.
pub fn refused(place: &Place, screen: &str) -> Vec<String> {
    let refused = |command: String| {
        let subcommand = command.split_whitespace().nth(1).unwrap_or_default();
        let typed = if SHOWING.contains(&subcommand) {
            command.clone()
        } else {
            // A wrong flag before `--help` is refused, too.
            let (own, script) = command.split_once(" -- ").unwrap_or((&command, ""));
            format!("{own} --help{}", if script.is_empty() { "" } else { " -- true" })
        };
        let told = place.type_in(&typed);
        (told.code == 2).then(|| format!("offered, but refused: {typed}\n{}", told.text))
    };
    commands(screen).into_iter().filter_map(refused).collect()
}

/// The commands of zprobe that a screen offers. The terminal may have wrapped them, with an indentation.
fn commands(screen: &str) -> Vec<String> {
    let mut lines = screen.lines().peekable();
    let mut all = Vec::new();
    while let Some(line) = lines.next() {
        let Some(mut text) =
            WORDS.iter().find_map(|word| line.strip_prefix(word)).map(str::to_owned)
        else {
            continue;
        };
        while let Some(more) = lines.next_if(|line| line.starts_with("  ")) {
            text = format!("{text} {}", more.trim_start());
        }
        let parts =
            text.split("; more: ").map(|part| part.split(" (").next().unwrap_or_default().trim());
        all.extend(parts.filter(|part| part.starts_with("zprobe ")).map(str::to_owned));
    }
    all
}

#[test]
fn offered_commands_are_found_on_a_screen() {
    let screen = "FINDINGS  ZP109\nnext: zprobe show -v .zprobe/runs/a (norms,\n  hooks)\nagain: zprobe run --engine ddp\n  --ga 2\n\
                  next: read report.md\nnext: zprobe show a; more: zprobe explain ZP109\n";
    assert_eq!(
        commands(screen),
        [
            "zprobe show -v .zprobe/runs/a",
            "zprobe run --engine ddp --ga 2",
            "zprobe show a",
            "zprobe explain ZP109"
        ]
    );
}
