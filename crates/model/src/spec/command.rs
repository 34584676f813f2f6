//! Commands that produce a given specification: the way back from a specification to flags.
//!
//! [`RunSpec::command`] is the inverse of parsing: it returns a command that resolves to the same specification, or
//! `None`. The command has only the flags that it needs, and always the engine, the stage and the accumulation
//! steps, because readers look for them.

use serde_json::{Map, Value, json};

use super::deepspeed::DeepSpeedConfig;
use super::settings::{ALL, Setting};
use super::{DeepSpeedFile, Dtype, LossScale, Optimizer, RunSpec, SpecRequest};

/// A command line of zprobe, with the DeepSpeed file that the command needs, if any.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// The subcommand of `zprobe`: `run`, or `exec` for a user's script.
    pub verb: &'static str,
    /// The arguments of the subcommand, one word each.
    pub arguments: Vec<String>,
    /// The content of the file that `--deepspeed-config` names, if flags cannot express the run.
    pub deepspeed_config: Option<Value>,
}

impl Command {
    /// The whole command as one line for a shell.
    pub fn line(&self) -> String {
        let words =
            ["zprobe", self.verb].into_iter().chain(self.arguments.iter().map(String::as_str));
        shlex::try_join(words).unwrap_or_default()
    }
}

impl SpecRequest {
    /// The arguments of `zprobe run` that express this request, as far as flags can.
    pub fn arguments(&self) -> Vec<String> {
        ALL.iter().flat_map(|setting| said(*setting, self)).collect()
    }

    /// A copy of this request without the settings that flags cannot express.
    #[must_use]
    pub fn sayable(&self) -> Self {
        let mut request = Self { deepspeed_config: None, ..self.clone() };
        ALL.iter().filter(|it| it.text(self).is_none()).for_each(|it| it.clear(&mut request));
        request
    }
}

impl RunSpec {
    /// The shortest command that resolves to this specification; a DeepSpeed file, if needed, is called `file`.
    /// `None` if there is no such command: if a file sets dtypes to `"auto"`, the specification holds only the
    /// configuration that was passed on, which says less than the file.
    pub fn command(&self, file: &str) -> Option<Command> {
        if let Some(script) = self.script() {
            let arguments = script.arguments(self.seed, self.timeout_s);
            return Some(Command { verb: "exec", arguments, deepspeed_config: None });
        }
        let flags = (self.as_flags(), None);
        let with_file = self.as_file();
        let (request, config) =
            [Some(flags), with_file].into_iter().flatten().find_map(|(request, config)| {
                let read = config.as_ref().map(parsed);
                let read = match read {
                    Some(read) => Some(read?),
                    None => None,
                };
                let is_this = resolves(&request, read.as_ref(), self);
                is_this.then(|| (shortened(request, read.as_ref(), self), config))
            })?;
        let arguments = self.said_in_order(&request, config.is_some().then_some(file));
        Some(Command { verb: "run", arguments, deepspeed_config: config })
    }

    /// The shortest arguments of `zprobe run` that resolve to this specification together with the user's DeepSpeed
    /// file `config`, called `file`, and that only give settings of `request`. `None` if there are no such
    /// arguments.
    pub fn arguments_beside(
        &self,
        request: SpecRequest,
        config: &DeepSpeedConfig,
        file: &str,
    ) -> Option<Vec<String>> {
        let is_this = resolves(&request, Some(config), self);
        is_this.then(|| self.said_in_order(&shortened(request, Some(config), self), Some(file)))
    }

    /// The arguments that express a request: the settings that are always stated, the DeepSpeed file, all other
    /// settings.
    fn said_in_order(&self, request: &SpecRequest, file: Option<&str>) -> Vec<String> {
        let (first, others): (Vec<_>, Vec<_>) =
            ALL.iter().partition(|it| it.describe().always_said);
        let words = |settings: &[&&dyn Setting]| -> Vec<String> {
            settings.iter().flat_map(|setting| said(**setting, request)).collect()
        };
        let mut arguments = words(&first);
        if let Some(file) = file {
            arguments.extend(["--deepspeed-config".to_owned(), file.to_owned()]);
        }
        arguments.extend(words(&others));
        arguments
    }

    /// The request that states every setting as a flag, as far as this engine has such a flag.
    fn as_flags(&self) -> SpecRequest {
        let mut request = SpecRequest::default();
        ALL.iter().for_each(|setting| setting.ask(self, &mut request));
        request
    }

    /// The flags and the DeepSpeed file that together express this specification; `None` for engines that have none
    /// of the file's keys, and if the configuration is unknown.
    fn as_file(&self) -> Option<(SpecRequest, Option<Value>)> {
        let (request, mut config) =
            match (self.engine().traits().deepspeed_file, self.deepspeed_config()) {
                (DeepSpeedFile::PassedOn, Some(Value::Object(passed_on))) => {
                    let mut request = SpecRequest::default();
                    ALL.iter().for_each(|setting| setting.ask_beside_file(self, &mut request));
                    (request, passed_on.clone())
                }
                (DeepSpeedFile::Followed, _) => (self.as_flags(), self.native_file()),
                _ => return None,
            };
        if request.optimizer.is_none() {
            config.insert("optimizer".to_owned(), section(self.optimizer));
        }
        Some((request, Some(Value::Object(config))))
    }

    /// The keys of a DeepSpeed file for settings that the native engine's flags cannot express: the microbatch
    /// size, and a dynamic loss scale.
    fn native_file(&self) -> Map<String, Value> {
        let mut config = Map::new();
        config.insert("train_micro_batch_size_per_gpu".to_owned(), self.micro_batch_size.into());
        if self.dtype == Dtype::Fp16
            && let LossScale::Dynamic { initial_power } = self.loss_scale
        {
            config.insert(
                "fp16".to_owned(),
                json!({"enabled": true, "initial_scale_power": initial_power}),
            );
        }
        config
    }
}

/// The section `optimizer` of a DeepSpeed file.
fn section(optimizer: Optimizer) -> Value {
    match optimizer {
        Optimizer::Sgd { lr } => json!({"type": "SGD", "params": {"lr": lr}}),
        Optimizer::Adamw { lr, betas, eps, weight_decay } => json!({
            "type": "AdamW",
            "params": {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
        }),
        Optimizer::Muon => json!({"type": "Muon"}),
    }
}

/// The DeepSpeed file with this content; `None` if the content is not valid.
fn parsed(config: &Value) -> Option<DeepSpeedConfig> {
    DeepSpeedConfig::parse(&config.to_string(), "").ok()
}

/// True if `request`, with the DeepSpeed file `config`, resolves to `spec`.
fn resolves(request: &SpecRequest, config: Option<&DeepSpeedConfig>, spec: &RunSpec) -> bool {
    let mut request = request.clone();
    if config.is_some_and(|config| config.apply(&mut request).is_err()) {
        return false;
    }
    request.resolve().is_ok_and(|resolved| resolved == *spec)
}

/// The request without the settings whose removal leads to the same specification.
fn shortened(
    mut request: SpecRequest,
    config: Option<&DeepSpeedConfig>,
    spec: &RunSpec,
) -> SpecRequest {
    for setting in ALL.iter().filter(|setting| !setting.describe().always_said) {
        let mut shorter = request.clone();
        setting.clear(&mut shorter);
        if setting.is_set(&request) && resolves(&shorter, config, spec) {
            request = shorter;
        }
    }
    request
}

fn said(setting: &dyn Setting, request: &SpecRequest) -> Vec<String> {
    let text = setting.text(request);
    text.map_or_else(Vec::new, |text| vec![setting.flag().to_owned(), text])
}
