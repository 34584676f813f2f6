//! `report.md`: the text of an issue, with the headings of the project's own bug report template.
//!
//! DeepSpeed's template is `.github/ISSUE_TEMPLATE/training_bug_report.md`, PyTorch's
//! `.github/ISSUE_TEMPLATE/bug-report.yml`, which is also the name of transformers' and accelerate's; Lightning's is
//! `.github/ISSUE_TEMPLATE/1_bug_report.yaml`.

mod fit;

use fit::{IssuePart, fitted};

use super::{Material, Project, SCRIPT_FILE};
use zprobe_engines as engines;
use zprobe_model::spec::Device;
use zprobe_model::visible;
use zprobe_report::Verdict;
use zprobe_report::document::{Document, Topic};
use zprobe_report::render::markdown::{self, block, code, escaped};
use zprobe_report::words::one_line;

/// The reason why a run may have no command that repeats it.
pub(super) const NO_COMMAND: &str = "its DeepSpeed file has dtypes of \"auto\", and the recorded configuration \
                                     lacks other parts of the file";

/// A script with more lines than this is folded, so that the open text of an issue has at most about 120 lines.
const MOST_SHOWN: usize = 40;

/// The maximum number of lines of the weights in the text of an issue.
const WEIGHT_LINES: usize = 40;

/// The maximum number of lines of each log in the text of an issue.
const LOG_LINES: usize = 30;

/// A heading of a project's bug report template, and the function that makes the parts after it.
type Piece = (&'static str, fn(&Material, &Document<'_>) -> Vec<IssuePart>);

const DEEPSPEED: &[Piece] = &[
    ("**Describe the bug**\n\n", description),
    ("\n**To Reproduce**\n\n", reproduction),
    ("\n**Expected behavior**\n\n", expected),
    ("\n**ds_report output**\n\n", ds_report),
    (
        "\n**Screenshots**\n\nNone; the weights above show the bug.\n\n\
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

const TRANSFORMERS: &[Piece] = &[
    ("### System Info\n\n", trainer_env),
    ("\n", system),
    ("\n### Who can help?\n\nThe maintainers of the Trainer.\n\n### Information\n\n", own_script),
    ("\n### Tasks\n\n", own_task),
    ("\n### Reproduction\n\n", description),
    ("\n", reproduction),
    ("\n", context),
    ("\n### Expected behavior\n\n", expected),
];

const ACCELERATE: &[Piece] = &[
    ("### System Info\n\n", trainer_env),
    ("\n", system),
    ("\n### Information\n\n", own_script),
    ("\n### Tasks\n\n", own_task),
    ("\n### Reproduction\n\n", description),
    ("\n", reproduction),
    ("\n", context),
    ("\n### Expected behavior\n\n", expected),
];

const LIGHTNING: &[Piece] = &[
    ("### Bug description\n\n", description),
    ("\nExpected: ", expected),
    ("\n### What version are you seeing the problem on?\n\n", trainer_version),
    ("\n### How to reproduce the bug\n\n", reproduction),
    (
        "\n### Error messages and logs\n\nThe weights above show the bug.\n\n### Environment\n\n",
        system,
    ),
    ("\n", collect_env),
    ("\n### More info\n\n", context),
];

const PLAIN: &[Piece] = &[
    ("### Describe the bug\n\n", description),
    ("\n### To reproduce\n\n", reproduction),
    ("\n### Expected behavior\n\n", expected),
    ("\n### Environment\n\n", system),
    ("\n### Additional context\n\n", context),
];

/// The text of the issue, cut to the size that GitHub accepts.
///
/// # Errors
/// As [`Document::of`].
pub(super) fn text(material: &Material) -> serde_json::Result<String> {
    let document = Document::of(&material.shown)?;
    let pieces = match material.project {
        Project::DeepSpeed => DEEPSPEED,
        Project::PyTorch => PYTORCH,
        Project::Transformers => TRANSFORMERS,
        Project::Accelerate => ACCELERATE,
        Project::Lightning => LIGHTNING,
        Project::Plain => PLAIN,
    };
    let parts = |(words, part): &Piece| {
        let part = part(material, &document);
        [IssuePart::Open((*words).to_owned())].into_iter().chain(part)
    };
    // GitHub does not show HTML comments. Characters that could end the comment are removed from the title.
    let title = material.title.replace("--", "- -").replace(['<', '>'], "");
    let title = IssuePart::Open(format!("<!-- Title: {} -->\n\n", visible::text(&title)));
    Ok(fitted([title].into_iter().chain(pieces.iter().flat_map(parts)).collect()))
}

/// The description of the bug: the main finding in one sentence, its place in the engine, the affected releases, the
/// settings and the weights.
fn description(material: &Material, document: &Document<'_>) -> Vec<IssuePart> {
    let report = &material.shown;
    let first = match (document.findings.first(), document.verdict) {
        (Some(main), _) => main.statement(),
        (None, Verdict::Clean) => "nothing is wrong with the gradients".to_owned(),
        (None, Verdict::Crashed) => "not every rank finished".to_owned(),
        (None, _) => "the run ended without an answer".to_owned(),
    };
    let known = document.findings.first().and_then(|main| main.known.first());
    let function = report.first_divergence.as_ref().and_then(|it| it.function.as_deref());
    let mut text = format!("{}.\n\n", escaped(&capital(&first)));
    if let Some(bug) = known {
        text += &format!("- Cause: {}\n", escaped(&one_line(&bug.cause)));
    }
    if let Some(function) = function {
        text += &format!("- First wrong buffer made by: {}\n", code(function));
    }
    let (releases, tried) = material.history.told(report);
    text += &format!("- Releases: {releases}\n");
    text += &markdown::items(&document.setting);
    text += &tried;
    let unfinished = document.about(Topic::Ranks).filter(|section| !section.is_detail);
    text += &unfinished.map(markdown::titled).unwrap_or_default();
    let mut parts = vec![IssuePart::Open(text)];
    if let Some(weights) = document.about(Topic::Weights) {
        let model = match report.run.spec.script() {
            Some(_) => {
                "The model is that of a training script, with codes in place of its gradients."
            }
            None => "The model is a synthetic one whose gradients are known.",
        };
        parts.push(IssuePart::Open(format!(
            "\nContribution weights: `w[r,m]`, where the gradient is `1/(W·GA) · Σ w[r,m]·g[r,m]` over \
             all ranks r and microbatches m of the step. 1 is right. {model}\n{}",
            beginning(&markdown::body(weights))
        )));
    }
    parts
}

/// The first paragraphs and tables of the weights, at most [`WEIGHT_LINES`] lines.
fn beginning(weights: &str) -> String {
    let lines: Vec<&str> = weights.lines().collect();
    if lines.len() <= WEIGHT_LINES {
        return weights.to_owned();
    }
    let end = lines[..WEIGHT_LINES].iter().rposition(|line| line.is_empty()).unwrap_or(0);
    format!("{}\n\nMore weights are in run/report.json of the zip.\n", lines[..end].join("\n"))
}

/// The sentence with its first letter in upper case.
fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    first + chars.as_str()
}

/// The script and the command that reproduce the run, or the reasons why they are missing.
fn reproduction(material: &Material, document: &Document<'_>) -> Vec<IssuePart> {
    let mut parts = Vec::new();
    match &material.script {
        Ok(script) => {
            let title = engines::of(material.report.run.spec.engine()).title;
            let ends = if document.verdict == Verdict::Crashed {
                "The script fails as the run did, with an exit code other than 0."
            } else {
                "The script prints the weight of each gradient in the update, and exits with code 1 if a weight is \
                 wrong."
            };
            parts.push(IssuePart::Open(format!(
                "`python {SCRIPT_FILE}` needs only torch{}, and starts its ranks on the CPU by itself. {ends}\n\n",
                if title == "DeepSpeed" { " and DeepSpeed" } else { "" },
            )));
            parts.push(match script.lines().count() {
                0..=MOST_SHOWN => IssuePart::Open(format!("{}\n", block("python", script))),
                _ => fold(SCRIPT_FILE, "python", script.clone(), SCRIPT_FILE),
            });
        }
        Err(reason) => parts.push(IssuePart::Open(format!(
            "There is no script without zprobe: {}.\n",
            escaped(reason)
        ))),
    }
    match &material.command {
        Some(command) => {
            let python = if engines::of(material.report.run.spec.engine()).is_real() {
                " `--python PATH` names the interpreter that has the engine."
            } else {
                ""
            };
            parts.push(IssuePart::Open(format!(
                "\nWith zprobe:{python}\n\n{}",
                block("", &visible::text(&command.line()))
            )));
            if let Some(config) = &command.deepspeed_config {
                let config = visible::json(config).unwrap_or_default();
                parts.push(fold(super::CONFIG_FILE, "json", config, super::CONFIG_FILE));
            }
        }
        None => {
            parts.push(IssuePart::Open(format!("\nNo command repeats this run: {NO_COMMAND}.\n")))
        }
    }
    parts.extend(document.about(Topic::Smallest).map(|it| IssuePart::Open(markdown::titled(it))));
    parts
}

fn expected(material: &Material, _: &Document<'_>) -> Vec<IssuePart> {
    let spec = &material.report.run.spec;
    open(format!(
        "Every weight is 1, on every rank: the optimizer consumes the average of all {} gradients of a \
         step ({} ranks × {} microbatches), and all ranks take the same step.\n",
        spec.contributions_per_step(),
        spec.world_size,
        spec.gradient_accumulation_steps,
    ))
}

fn open(text: String) -> Vec<IssuePart> {
    vec![IssuePart::Open(text)]
}

fn ds_report(material: &Material, _: &Document<'_>) -> Vec<IssuePart> {
    let otherwise = "collects it from the interpreter that had the bug";
    collected("ds_report", material.environment.ds_report.as_deref(), otherwise)
}

/// The output of `transformers env` or `accelerate env`.
fn trainer_env(material: &Material, _: &Document<'_>) -> Vec<IssuePart> {
    let title = format!("{} env", material.project);
    let otherwise = format!("adds the output of `{title}`");
    collected(&title, material.environment.trainer_env.as_deref(), &otherwise)
}

/// The version of Lightning that the ranks imported.
fn trainer_version(material: &Material, _: &Document<'_>) -> Vec<IssuePart> {
    let versions = &material.shown.run.versions;
    let found = versions.get("lightning").or_else(|| versions.get("pytorch-lightning"));
    open(format!("{}\n", escaped(found.map_or("not known", String::as_str))))
}

/// The answer to a form that asks which scripts have the problem.
fn own_script(_: &Material, _: &Document<'_>) -> Vec<IssuePart> {
    open("- [ ] The official example scripts\n- [x] My own modified scripts\n".to_owned())
}

/// The answer to a form that asks which task has the problem.
fn own_task(material: &Material, _: &Document<'_>) -> Vec<IssuePart> {
    let official = match material.project {
        Project::Accelerate => "A script of the `examples` folder",
        _ => "An officially supported task in the `examples` folder",
    };
    open(format!("- [ ] {official}\n- [x] My own task or dataset\n"))
}

fn collect_env(material: &Material, _: &Document<'_>) -> Vec<IssuePart> {
    let title = "python -m torch.utils.collect_env";
    let otherwise = "adds the output of `python -m torch.utils.collect_env`";
    collected(title, material.environment.collect_env.as_deref(), otherwise)
}

/// The output of an engine's own script in a folded block. If there is no output, the text tells the reader to run
/// `zprobe issue --python PATH`, and `otherwise` says what this command does.
fn collected(title: &str, output: Option<&str>, otherwise: &str) -> Vec<IssuePart> {
    match output {
        Some(output) => {
            let output = visible::text(output).into_owned();
            vec![fold(title, "text", output, "environment.txt")]
        }
        None => open(format!("Not collected: `zprobe issue --python PATH` {otherwise}.\n")),
    }
}

fn fold(title: &str, language: &'static str, content: String, place: &str) -> IssuePart {
    IssuePart::Fold { title: title.to_owned(), language, content, place: place.to_owned() }
}

fn system(material: &Material, _: &Document<'_>) -> Vec<IssuePart> {
    let environment = &material.environment;
    let fact = |wanted: &str| {
        let found = environment.facts.iter().find(|(name, _)| name == wanted);
        escaped(&visible::text(found.map_or("not known", |(_, value)| value.as_str())))
    };
    let spec = &material.report.run.spec;
    let place = match spec.device {
        Device::Cuda => "the ranks ran on them",
        _ => "the ranks ran on the CPU",
    };
    let gpus = match &environment.gpus {
        Ok(gpus) if gpus.is_empty() => format!("none; {place}"),
        _ => format!("{}; {place}", fact("GPUs")),
    };
    let versions = &material.shown.run.versions;
    let version = |name: &str| versions.get(name).map_or("not known", String::as_str);
    let others: Vec<String> = versions
        .iter()
        .filter(|(name, _)| *name != "python")
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    open(format!(
        " - OS: {}, kernel {}\n - GPU count and types: {gpus}\n - Interconnects: {}, between processes of one machine\n - Python version: {}\n - {}\n",
        fact("system"),
        fact("kernel"),
        spec.backend,
        escaped(version("python")),
        escaped(&others.join(", ")),
    ))
}

fn launcher(material: &Material, _: &Document<'_>) -> Vec<IssuePart> {
    let script = match &material.script {
        Ok(_) => format!("None: {SCRIPT_FILE} starts its ranks by itself."),
        Err(_) => "zprobe starts the ranks, with the variables that torchrun sets.".to_owned(),
    };
    open(format!("{script}\n"))
}

fn container(material: &Material, _: &Document<'_>) -> Vec<IssuePart> {
    let container = "In a container; its image is not known to zprobe.\n";
    let text = if material.environment.container { container } else { "No container.\n" };
    open(text.to_owned())
}

/// The additional context: all findings, the power of the run, and in folded blocks the configuration, the variables
/// and the ends of logs.
fn context(material: &Material, document: &Document<'_>) -> Vec<IssuePart> {
    let mut parts = Vec::new();
    if !document.findings.is_empty() {
        let all = markdown::findings(document.findings);
        parts.push(IssuePart::Open(format!("All that zprobe found:\n{all}\n")));
    }
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
    parts.push(IssuePart::Open(format!("{power}\n{zip}{alone}\n")));
    parts
}
