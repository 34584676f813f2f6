//! `report.md`: the text of an issue, under the headings of a project's own template for bugs.
//!
//! DeepSpeed's template is `.github/ISSUE_TEMPLATE/bug_report.md`, PyTorch's
//! `.github/ISSUE_TEMPLATE/bug-report.yml`.

mod fit;

use fit::{Part, fitted};

use super::{Material, Project};
use crate::engines;
use crate::report::Verdict;
use crate::report::document::{Document, Topic};
use crate::report::render::markdown::{self, block, escaped};
use crate::visible;

/// Reason why no command may lead to a run.
pub(super) const NO_COMMAND: &str = "its DeepSpeed file left dtypes to \"auto\", and what was passed on says less than the file did";

/// Most lines of a log in the text of an issue.
const LOG_LINES: usize = 30;

/// Words of a project's template for bugs, and the part of the issue that follows them.
type Piece = (&'static str, fn(&Material, &Document<'_>) -> Vec<Part>);

const DEEPSPEED: &[Piece] = &[
    ("**Describe the bug**\n\n", description),
    ("\n**To Reproduce**\n\n", reproduction),
    ("\n**Expected behavior**\n\n", expected),
    ("\n**ds_report output**\n\n", ds_report),
    (
        "\n**Screenshots**\n\nNone; the weights above are what there is to see.\n\n\
         **System info (please complete the following information):**\n",
        system,
    ),
    ("\n**Launcher context**\n\n", launcher),
    ("\n**Docker context**\n\n", container),
    ("\n**Additional context**\n\n", context),
];

const PYTORCH: &[Piece] = &[
    ("### 🐛 Describe the bug\n\n", description),
    ("\nTo reproduce:\n\n", reproduction),
    ("\n", expected),
    ("\n", context),
    ("\n### Versions\n\n", system),
    ("\n", collect_env),
];

const PLAIN: &[Piece] = &[
    ("### Describe the bug\n\n", description),
    ("\n### To reproduce\n\n", reproduction),
    ("\n### Expected behavior\n\n", expected),
    ("\n### Environment\n\n", system),
    ("\n### Additional context\n\n", context),
];

/// The text of the issue, of a size that GitHub takes.
///
/// # Errors
/// As [`Document::of`].
pub(super) fn text(material: &Material) -> serde_json::Result<String> {
    let document = Document::of(&material.shown)?;
    let pieces = match material.project {
        Project::DeepSpeed => DEEPSPEED,
        Project::PyTorch => PYTORCH,
        Project::Plain => PLAIN,
    };
    let parts = |(words, part): &Piece| {
        let part = part(material, &document);
        [Part::Open((*words).to_owned())].into_iter().chain(part)
    };
    Ok(fitted(pieces.iter().flat_map(parts).collect()))
}

/// The setup of the run, its findings, the ranks that did not finish, and the weights.
fn description(material: &Material, document: &Document<'_>) -> Vec<Part> {
    let first = match document.verdict {
        Verdict::Findings => {
            "was trained for a few steps, and not every (rank, microbatch) gradient reached the \
             optimizer once, with its right weight:"
        }
        Verdict::Crashed => "was to be trained for a few steps, and not every rank got to the end:",
        Verdict::Inconclusive => {
            "was to be trained for a few steps, and the run ended without an answer:"
        }
        Verdict::Clean => "was trained for a few steps, and nothing was wrong with its gradients:",
    };
    let setting = markdown::items(&document.setting);
    let model = match material.report.run.spec.script() {
        Some(_) => "The model of a training script, with codes in place of its gradients,",
        None => "A synthetic model with known gradients",
    };
    let mut text = format!("{model} {first}\n\n{setting}");
    text += &markdown::findings(document.findings);
    let unfinished = document.about(Topic::Ranks).filter(|section| !section.is_detail);
    text += &unfinished.map(markdown::titled).unwrap_or_default();
    let mut parts = vec![Part::Open(text)];
    if let Some(weights) = document.about(Topic::Weights) {
        parts.push(Part::Open(format!(
            "\nContribution weights: `w[r,m]`, where the gradient is `1/(W·GA) · Σ w[r,m]·g[r,m]` over \
             all ranks r and microbatches m of the step. 1 is right.\n{}",
            markdown::body(weights)
        )));
    }
    parts
}

/// The script and the command that reproduce the run.
fn reproduction(material: &Material, document: &Document<'_>) -> Vec<Part> {
    let mut parts = Vec::new();
    match &material.script {
        Ok(script) => {
            let world = material.report.run.spec.world_size;
            parts.push(Part::Open(format!(
                "With torch and the engine alone, on CPU ranks: `torchrun --nproc-per-node {world} \
                 standalone.py`. It prints the weights, and its exit code is 1 if one is wrong.\n\n"
            )));
            parts.push(fold("standalone.py", "python", script.clone(), "standalone.py"));
        }
        Err(reason) => parts
            .push(Part::Open(format!("There is no script without zprobe: {}.\n", escaped(reason)))),
    }
    match &material.command {
        Some(command) => {
            let python = if engines::of(material.report.run.spec.engine()).is_real() {
                " `--python PATH` names the interpreter that has the engine."
            } else {
                ""
            };
            parts.push(Part::Open(format!(
                "\nWith zprobe:{python}\n\n{}",
                block("", &visible::text(&command.line()))
            )));
            if let Some(config) = &command.deepspeed_config {
                let config = visible::json(config).unwrap_or_default();
                parts.push(fold(super::CONFIG_FILE, "json", config, super::CONFIG_FILE));
            }
        }
        None => parts.push(Part::Open(format!("\nNo command leads to this run: {NO_COMMAND}.\n"))),
    }
    parts.extend(document.about(Topic::Smallest).map(|it| Part::Open(markdown::titled(it))));
    parts
}

fn expected(material: &Material, _: &Document<'_>) -> Vec<Part> {
    let spec = &material.report.run.spec;
    open(format!(
        "Every weight is 1, on every rank: the optimizer consumes the average of all {} gradients of a \
         step ({} ranks × {} microbatches), and all ranks take the same step.\n",
        spec.contributions_per_step(),
        spec.world_size,
        spec.gradient_accumulation_steps,
    ))
}

fn open(text: String) -> Vec<Part> {
    vec![Part::Open(text)]
}

fn ds_report(material: &Material, _: &Document<'_>) -> Vec<Part> {
    let otherwise = "collects it from the interpreter that had the bug";
    collected("ds_report", material.environment.ds_report.as_deref(), otherwise)
}

fn collect_env(material: &Material, _: &Document<'_>) -> Vec<Part> {
    let title = "python -m torch.utils.collect_env";
    let otherwise = "adds the output of `python -m torch.utils.collect_env`";
    collected(title, material.environment.collect_env.as_deref(), otherwise)
}

/// Output of an engine's own script, folded; `otherwise` says what `zprobe issue --python PATH` does where
/// there is none.
fn collected(title: &str, output: Option<&str>, otherwise: &str) -> Vec<Part> {
    match output {
        Some(output) => {
            let output = visible::text(output).into_owned();
            vec![fold(title, "text", output, "environment.txt")]
        }
        None => open(format!("Not collected: `zprobe issue --python PATH` {otherwise}.\n")),
    }
}

fn fold(title: &str, language: &'static str, content: String, place: &str) -> Part {
    Part::Fold { title: title.to_owned(), language, content, place: place.to_owned() }
}

fn system(material: &Material, _: &Document<'_>) -> Vec<Part> {
    let environment = &material.environment;
    let fact = |wanted: &str| {
        let found = environment.facts.iter().find(|(name, _)| name == wanted);
        escaped(&visible::text(found.map_or("not known", |(_, value)| value.as_str())))
    };
    let gpus = match &environment.gpus {
        Ok(gpus) if gpus.is_empty() => "none; the ranks ran on the CPU".to_owned(),
        _ => format!("{}; the ranks of this run were on the CPU", fact("GPUs")),
    };
    let versions = &material.shown.run.versions;
    let version = |name: &str| versions.get(name).map_or("not known", String::as_str);
    let others: Vec<String> = versions
        .iter()
        .filter(|(name, _)| *name != "python")
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    open(format!(
        " - OS: {}, kernel {}\n - GPU count and types: {gpus}\n - Interconnects: gloo over the host's \
         own network\n - Python version: {}\n - {}\n",
        fact("system"),
        fact("kernel"),
        escaped(version("python")),
        escaped(&others.join(", ")),
    ))
}

fn launcher(material: &Material, _: &Document<'_>) -> Vec<Part> {
    let script = if material.script.is_ok() { " standalone.py runs under torchrun." } else { "" };
    open(format!("zprobe starts the ranks, with the variables that torchrun sets.{script}\n"))
}

fn container(material: &Material, _: &Document<'_>) -> Vec<Part> {
    let container = "In a container; its image is not known to zprobe.\n";
    let text = if material.environment.container { container } else { "No container.\n" };
    open(text.to_owned())
}

/// Additional context: the configuration, variables and ends of logs, folded, and what the run
/// could have seen.
fn context(material: &Material, document: &Document<'_>) -> Vec<Part> {
    let mut parts = Vec::new();
    if let Some(config) = &material.report.run.spec.deepspeed_config() {
        let text = visible::json(config).unwrap_or_default();
        parts.push(fold(
            "configuration that DeepSpeed was given",
            "json",
            text,
            "deepspeed-as-passed.json",
        ));
    }
    let variables: String = material
        .environment
        .variables
        .iter()
        .map(|(name, value)| format!("{name}={value}\n"))
        .collect();
    if !variables.is_empty() {
        let text = visible::text(&variables).into_owned();
        parts.push(fold("variables", "text", text, "environment.txt"));
    }
    if material.report.ranks.iter().any(|rank| !rank.finished) {
        for tail in &material.logs {
            let text = visible::text(&tail.text);
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            let place = format!("run/{}", tail.name);
            parts.push(fold(&format!("end of {}", tail.name), "text", last, &place));
        }
    }
    let alone = match &material.report.repeats {
        Some(repeats) => format!(" {}", super::only_one(repeats)),
        None => String::new(),
    };
    let power = document.about(Topic::Power).map(markdown::titled).unwrap_or_default();
    let zip = "The attached zip has the recorded run, for `zprobe show run`.";
    parts.push(Part::Open(format!("{power}\n{zip}{alone}\n")));
    parts
}
