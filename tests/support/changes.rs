//! Changes of scripts: mistakes to plant and harmless changes, as the files in fixtures/mistakes and
//! fixtures/frameworks list them.

use std::fs;
use std::path::Path;

use serde::Deserialize;

/// The content of a file of changes.
#[derive(Deserialize)]
pub struct Changes {
    pub mistake: Vec<Mistake>,
    #[serde(default)]
    #[allow(dead_code, reason = "not all programs with this module run harmless changes")]
    pub harmless: Vec<Change>,
}

/// A mistake, with the kind of finding that has to name it.
#[derive(Clone, Deserialize)]
pub struct Mistake {
    pub finding: String,
    #[serde(flatten)]
    pub change: Change,
}

/// A changed script: the script with its run, and the edits that change it.
#[derive(Clone, Deserialize)]
pub struct Change {
    pub name: String,
    pub script: String,
    pub world: usize,
    pub flags: String,
    pub edit: Vec<Edit>,
}

/// A replacement of a text that a script has once.
#[derive(Clone, Deserialize)]
pub struct Edit {
    file: Option<String>,
    old: String,
    new: String,
}

/// The rules that name each kind of mistake.
const NAMES: &[(&str, &[&str])] = &[
    ("factor", &["ZP111", "ZP112", "ZP105"]),
    ("extra-loss", &["ZP112", "ZP111", "ZP113"]),
    ("weight", &["ZP113", "ZP109", "ZP105", "ZP111", "ZP115", "ZP116"]),
    ("clipping", &["ZP607", "ZP608"]),
    ("earlier-steps", &["ZP106"]),
    ("window", &["ZP110", "ZP111", "ZP112"]),
    ("not-reduced", &["ZP104", "ZP101", "ZP106"]),
    ("never-reduced", &["ZP104", "ZP102"]),
    ("lost", &["ZP102", "ZP113"]),
    ("cut-off", &["ZP203"]),
    ("settings", &["ZP608"]),
    ("unequal-tokens", &["ZP109", "ZP111", "ZP115"]),
    ("stale", &["ZP602", "ZP401", "ZP609", "ZP203"]),
    ("not-in-optimizer", &["ZP401"]),
    ("nothing-arrives", &["ZP605", "ZP102", "ZP401"]),
    ("twice-in-optimizer", &["ZP401"]),
    ("stepped-twice", &["ZP606"]),
    ("step-skipped", &["ZP606"]),
    ("changed-before-step", &["ZP605", "ZP111"]),
    ("initialisation", &["ZP601"]),
    ("swallowed", &["ZP610"]),
    ("update", &["ZP603"]),
    ("crash", &["ZP901"]),
    ("hang", &["ZP902"]),
    ("unequal-microbatches", &["ZP108", "ZP103", "ZP113"]),
    ("same-samples", &["ZP116"]),
];

impl Changes {
    /// Reads a file of changes.
    ///
    /// # Errors
    /// If the file cannot be read or has another form.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|it| format!("{}: {it}", path.display()))?;
        toml::from_str(&text).map_err(|it| format!("{}: {it}", path.display()))
    }
}

impl Mistake {
    /// The codes of the rules that name the mistake; empty for an unknown kind of finding.
    pub fn names(&self) -> &'static [&'static str] {
        NAMES.iter().find(|(kind, _)| *kind == self.finding).map_or(&[], |(_, codes)| codes)
    }
}

impl Change {
    /// Makes the edits in the scripts of a directory.
    ///
    /// # Errors
    /// If a script cannot be read or written, or does not have the text of an edit exactly once.
    pub fn plant(&self, dir: &Path) -> Result<(), String> {
        for edit in &self.edit {
            let path = dir.join(edit.file.as_ref().unwrap_or(&self.script));
            let failed = |it: std::io::Error| format!("{}: {it}", path.display());
            let text = fs::read_to_string(&path).map_err(failed)?;
            if text.matches(&edit.old).count() != 1 {
                return Err(format!("{}: not once in the script: {}", self.name, edit.old));
            }
            fs::write(&path, text.replace(&edit.old, &edit.new)).map_err(failed)?;
        }
        Ok(())
    }
}
