//! The plan for installing packages: `recipe.toml`, applied to the wanted packages.

use std::collections::BTreeMap;

use pep440_rs::VersionSpecifiers;
use serde::Deserialize;

use super::error::ProvisionError;
use zprobe_zoo::Packages;

/// The text of `recipe.toml`, which holds the facts about releases.
const RECIPE: &str = include_str!("recipe.toml");

/// The content of `recipe.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recipe {
    /// The supported versions of Python, best first.
    python: Vec<String>,
    companion: Vec<CompanionRequirements>,
    source: Vec<SourcePackage>,
    import: Vec<Import>,
}

/// Requirements that are installed together with a package.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CompanionRequirements {
    package: String,
    /// The versions of the package that need these requirements.
    versions: VersionSpecifiers,
    /// The requirements, in pip's syntax.
    install: Vec<String>,
    /// The reason for the entry, for readers of the file.
    #[serde(rename = "reason")]
    _reason: String,
}

/// A package that is built from source, against the packages that are installed already.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourcePackage {
    package: String,
    /// The environment variables of the package's build.
    build: BTreeMap<String, String>,
    /// The reason for the entry, for readers of the file.
    #[serde(rename = "reason")]
    _reason: String,
}

/// A package that must import once everything is installed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// The name of the package, which is also the name of its module.
    pub package: String,
    /// The environment variables under which the package must import.
    pub variables: BTreeMap<String, String>,
}

/// All steps that make one environment, in order.
#[derive(Debug)]
pub struct Plan {
    /// The supported versions of Python, best first: `3.11`.
    pub python: Vec<String>,
    /// The runs of the installer, in order.
    pub stages: Vec<Stage>,
    /// The packages that must import after the installation.
    pub imports: Vec<Import>,
}

/// A single run of the installer, with its requirements.
#[derive(Debug)]
pub struct Stage {
    /// The requirements, in pip's syntax.
    pub requirements: Vec<String>,
    /// True if the packages are built against the installed packages, and not in isolation.
    pub from_source: bool,
    /// The environment variables of the installer.
    pub variables: BTreeMap<String, String>,
}

/// Reads the recipe that is built into this program.
fn recipe() -> Result<Recipe, ProvisionError> {
    toml::from_str(RECIPE).map_err(|cause| ProvisionError::Recipe(Box::new(cause)))
}

/// The stage that installs a package from the directory `source`, and the import that follows. The environment must
/// already have all requirements of the package and of its build.
pub fn from_directory(
    package: &str,
    source: String,
) -> Result<(Stage, Option<Import>), ProvisionError> {
    let recipe = recipe()?;
    let known = recipe.source.into_iter().find(|it| it.package == package);
    let stage = Stage {
        requirements: vec![source],
        from_source: true,
        variables: known.map(|it| it.build).unwrap_or_default(),
    };
    Ok((stage, recipe.import.into_iter().find(|it| it.package == package)))
}

impl Plan {
    /// The plan for an environment with the given packages.
    ///
    /// # Errors
    /// If the built-in recipe cannot be parsed. The tests below rule this out for a release.
    pub fn new(packages: &Packages) -> Result<Self, ProvisionError> {
        let recipe = recipe()?;
        let mut wheels =
            Stage { requirements: Vec::new(), from_source: false, variables: BTreeMap::new() };
        let mut built = Vec::new();
        for (name, version) in packages.iter() {
            let requirement = format!("{name}=={version}");
            match recipe.source.iter().find(|source| source.package == name) {
                Some(source) => built.push(Stage {
                    requirements: vec![requirement],
                    from_source: true,
                    variables: source.build.clone(),
                }),
                None => wheels.requirements.push(requirement),
            }
            let companions = recipe.companion.iter().filter(|it| it.package == name);
            for companion in companions.filter(|it| it.versions.contains(version)) {
                wheels.requirements.extend(companion.install.iter().cloned());
            }
        }
        let stages = [wheels].into_iter().chain(built);
        Ok(Self {
            stages: stages.filter(|stage| !stage.requirements.is_empty()).collect(),
            imports: recipe
                .import
                .into_iter()
                .filter(|import| packages.version(&import.package).is_some())
                .collect(),
            python: recipe.python,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(packages: &[(&str, &str)]) -> Plan {
        let packages =
            packages.iter().map(|(name, version)| (*name, version.parse().unwrap())).collect();
        Plan::new(&packages).unwrap()
    }

    #[test]
    fn deepspeed_is_built_after_torch_and_against_it() {
        let plan = plan(&[("deepspeed", "0.18.9"), ("torch", "2.11.0")]);
        let [wheels, built] = &plan.stages[..] else { panic!("{plan:?}") };
        assert!(wheels.requirements.contains(&"torch==2.11.0".to_owned()));
        assert!(!wheels.from_source && built.from_source);
        assert_eq!(built.requirements, ["deepspeed==0.18.9"]);
        assert_eq!(built.variables["DS_BUILD_OPS"], "0");
    }

    #[test]
    fn old_torch_gets_the_numpy_that_it_was_compiled_for() {
        let numpy = |version| {
            let stages = plan(&[("torch", version)]).stages;
            let mut all = stages.into_iter().flat_map(|stage| stage.requirements);
            all.find(|requirement| requirement.starts_with("numpy"))
        };
        assert_eq!(numpy("2.0.0").as_deref(), Some("numpy==1.26.4"));
        assert_eq!(numpy("2.11.0").as_deref(), Some("numpy==2.2.6"));
    }

    #[test]
    fn what_was_asked_for_must_import() {
        let imports = |packages| -> Vec<String> {
            plan(packages).imports.into_iter().map(|import| import.package).collect()
        };
        assert_eq!(imports(&[("torch", "2.6.0")]), ["torch"]);
        assert_eq!(
            imports(&[("deepspeed", "0.19.8"), ("torch", "2.11.0")]),
            ["torch", "deepspeed"]
        );
    }
}
