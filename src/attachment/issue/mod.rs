//! `report.md`: the text of an issue, under the headings of a project's own template for bugs.
//!
//! DeepSpeed's template is `.github/ISSUE_TEMPLATE/bug_report.md`, PyTorch's
//! `.github/ISSUE_TEMPLATE/bug-report.yml`.

mod fit;

use fit::{Part, fitted};

use super::{Material, Project};
use crate::engines;
use crate::report::Verdict;
use crate::report::render::markdown::{self, block, escaped};
use crate::visible;

/// Reason why no command may lead to a run.
pub(super) const NO_COMMAND: &str = "its DeepSpeed file left dtypes to \"auto\", and what was passed on says less than the file did";

/// Most lines of a log in the text of an issue.
const LOG_LINES: usize = 30;

/// The text of the issue, of a size that GitHub takes.
pub(super) fn text(material: &Material) -> String {
    let parts = match material.project {
        Project::DeepSpeed => deepspeed(material),
        Project::PyTorch => pytorch(material),
        Project::Plain => plain(material),
    };
    fitted(parts)
}

fn deepspeed(material: &Material) -> Vec<Part> {
    let mut parts = vec![Part::Open("**Describe the bug**\n\n".to_owned())];
    parts.extend(description(material));
    parts.push(Part::Open("\n**To Reproduce**\n\n".to_owned()));
    parts.extend(reproduction(material));
    parts.push(Part::Open(format!("\n**Expected behavior**\n\n{}", expected(material))));
    parts.push(Part::Open("\n**ds_report output**\n\n".to_owned()));
    parts.push(collected(
        "ds_report",
        material.environment.ds_report.as_deref(),
        "`zprobe report --python PATH` collects it from the interpreter that had the bug.\n",
    ));
    parts.push(Part::Open(format!(
        "\n**Screenshots**\n\nNone; the weights above are what there is to see.\n\n\
         **System info (please complete the following information):**\n{}\n\
         **Launcher context**\n\n{}\n\
         **Docker context**\n\n{}\n\
         **Additional context**\n\n",
        system(material),
        launcher(material),
        container(material),
    )));
    parts.extend(context(material));
    parts
}

fn pytorch(material: &Material) -> Vec<Part> {
    let mut parts = vec![Part::Open("### 🐛 Describe the bug\n\n".to_owned())];
    parts.extend(description(material));
    parts.push(Part::Open("\nTo reproduce:\n\n".to_owned()));
    parts.extend(reproduction(material));
    parts.push(Part::Open(format!("\n{}\n", expected(material))));
    parts.extend(context(material));
    parts.push(Part::Open(format!("\n### Versions\n\n{}\n", system(material))));
    parts.push(collected(
        "python -m torch.utils.collect_env",
        material.environment.collect_env.as_deref(),
        "`zprobe report --python PATH` adds the output of `python -m torch.utils.collect_env`.\n",
    ));
    parts
}

fn plain(material: &Material) -> Vec<Part> {
    let mut parts = vec![Part::Open("### Describe the bug\n\n".to_owned())];
    parts.extend(description(material));
    parts.push(Part::Open("\n### To reproduce\n\n".to_owned()));
    parts.extend(reproduction(material));
    parts.push(Part::Open(format!(
        "\n### Expected behavior\n\n{}\n### Environment\n\n{}\n### Additional context\n\n",
        expected(material),
        system(material),
    )));
    parts.extend(context(material));
    parts
}

/// The setup of the run, its findings, the ranks that did not finish, and the weights.
fn description(material: &Material) -> Vec<Part> {
    let report = &material.report;
    let first = match report.verdict {
        Verdict::Findings => {
            "A synthetic model with known gradients was trained for a few steps, and \
                              not every (rank, microbatch) gradient reached the optimizer once, with \
                              its right weight:"
        }
        Verdict::Crashed => {
            "A synthetic model with known gradients was to be trained for a few steps, \
                             and not every rank got to the end:"
        }
        Verdict::Inconclusive => {
            "A synthetic model with known gradients was to be trained for a few \
                                  steps, and the run ended without an answer:"
        }
        Verdict::Clean => {
            "A synthetic model with known gradients was trained for a few steps, and \
                           nothing was wrong with its gradients:"
        }
    };
    let mut text = format!("{first}\n\n{}", markdown::setup(&material.shown));
    text += &markdown::findings(&material.shown);
    text += &markdown::ranks(&material.shown);
    let mut parts = vec![Part::Open(text)];
    let weights = markdown::contributions(&material.shown);
    if !weights.is_empty() {
        parts.push(Part::Open(format!(
            "\nContribution weights: `w[r,m]`, where the gradient is `1/(W·GA) · Σ w[r,m]·g[r,m]` over \
             all ranks r and microbatches m of the step. 1 is right.\n{weights}"
        )));
    }
    parts
}

/// The script and the command that reproduce the run.
fn reproduction(material: &Material) -> Vec<Part> {
    let mut parts = Vec::new();
    match &material.script {
        Ok(script) => {
            let world = material.report.run.spec.world_size;
            parts.push(Part::Open(format!(
                "With torch and the engine alone, on CPU ranks: `torchrun --nproc-per-node {world} \
                 standalone.py`. It prints the weights, and its exit code is 1 if one is wrong.\n\n"
            )));
            parts.push(Part::Fold {
                title: "standalone.py".to_owned(),
                language: "python",
                content: script.clone(),
                place: "standalone.py".to_owned(),
            });
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
                parts.push(Part::Fold {
                    title: super::CONFIG_FILE.to_owned(),
                    language: "json",
                    content: visible::json(config).unwrap_or_default(),
                    place: super::CONFIG_FILE.to_owned(),
                });
            }
        }
        None => parts.push(Part::Open(format!("\nNo command leads to this run: {NO_COMMAND}.\n"))),
    }
    if let Some(smallest) = &material.shown.minimised {
        parts.push(Part::Open(format!(
            "\nThe smallest configuration that shows {}:\n\n{}",
            escaped(&smallest.code),
            block("", &smallest.command),
        )));
    }
    parts
}

fn expected(material: &Material) -> String {
    let spec = &material.report.run.spec;
    format!(
        "Every weight is 1, on every rank: the optimizer consumes the average of all {} gradients of a \
         step ({} ranks × {} microbatches), and all ranks take the same step.\n",
        spec.contributions_per_step(),
        spec.world_size,
        spec.gradient_accumulation_steps,
    )
}

/// Output of an engine's own script, folded; `otherwise` says how to collect it where there is
/// none.
fn collected(title: &str, output: Option<&str>, otherwise: &str) -> Part {
    match output {
        Some(output) => Part::Fold {
            title: title.to_owned(),
            language: "text",
            content: visible::text(output).into_owned(),
            place: "environment.txt".to_owned(),
        },
        None => Part::Open(format!("Not collected: {otherwise}")),
    }
}

fn system(material: &Material) -> String {
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
    format!(
        " - OS: {}, kernel {}\n - GPU count and types: {gpus}\n - Interconnects: gloo over the host's \
         own network\n - Python version: {}\n - {}\n",
        fact("system"),
        fact("kernel"),
        escaped(version("python")),
        escaped(&others.join(", ")),
    )
}

fn launcher(material: &Material) -> String {
    let script = match &material.script {
        Ok(_) => " standalone.py runs under torchrun.",
        Err(_) => "",
    };
    format!("zprobe starts the ranks, with the variables that torchrun sets.{script}\n")
}

fn container(material: &Material) -> &'static str {
    if material.environment.container {
        "In a container; its image is not known to zprobe.\n"
    } else {
        "No container.\n"
    }
}

/// Additional context: the configuration, variables and ends of logs, folded, and what the run
/// could have seen.
fn context(material: &Material) -> Vec<Part> {
    let fold = |title: &str, language, content: String, place: &str| Part::Fold {
        title: title.to_owned(),
        language,
        content,
        place: place.to_owned(),
    };
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
    parts.push(Part::Open(format!(
        "{}\nThe attached zip has the recorded run, for `zprobe diagnose run`.{alone}\n",
        markdown::power(&material.shown)
    )));
    parts
}
