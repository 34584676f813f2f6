//! Reads the section `optimizer` of a DeepSpeed file, and finds the algorithm that DeepSpeed would build from it.

use serde_json::Value;

use super::Reader;
use crate::spec::{DeepSpeedFile, Optimizer};

/// The section's object with the parameters of the algorithm.
const PARAMS: &str = "/optimizer/params";

/// The parameters of DeepSpeed's and torch's Adam variants, and of `_configure_basic_optimizer`.
const ADAM_PARAMS: &str = "lr betas eps weight_decay torch_adam adam_w_mode bias_correction amsgrad maximize \
                           foreach fused capturable differentiable set_grad_none fp32_optimizer_states";

/// The parameters of `torch.optim.SGD`.
const SGD_PARAMS: &str =
    "lr momentum dampening weight_decay nesterov maximize foreach fused differentiable";

/// The parameters of DeepSpeed's Muon, and of its Adam for the parameters that are no matrices.
const MUON_PARAMS: &str = "lr muon_lr adam_lr momentum weight_decay betas eps ns_method per_head_muon torch_adam \
                           adam_w_mode fp32_optimizer_states";

impl Reader<'_> {
    /// Reads the section as `DeepSpeedEngine._configure_basic_optimizer` (`runtime/engine.py`) does. `None` if the
    /// section names no type, because the optimizer is then passed to `deepspeed.initialize`, and if a problem was
    /// reported.
    pub(super) fn optimizer(&mut self) -> Option<Optimizer> {
        const TYPE: &str = "/optimizer/type";
        let Some(name) = self.read(TYPE, "a string", Value::as_str) else {
            let text = "no optimizer section, as in scripts that pass an optimizer to deepspeed.initialize; \
                        zprobe's default optimizer runs, --optimizer chooses another";
            self.note(&[], text);
            return None;
        };
        self.read(PARAMS, "an object", Value::as_object);
        // DeepSpeed ignores the case of its own optimizers; `SGD` is a class of `torch.optim`.
        match name.to_lowercase().as_str() {
            "adam" => Some(self.adam(false)),
            "adamw" => Some(self.adam(true)),
            "muon" if self.engine_use == DeepSpeedFile::PassedOn => {
                self.check_params(MUON_PARAMS);
                Some(Optimizer::Muon)
            }
            _ if name == "SGD" => Some(self.sgd()),
            _ => {
                let text = "zprobe runs its own optimizer in place of \"SGD\", \"Adam\" or \"AdamW\", and under \
                            --engine deepspeed \"Muon\", but no other; pass --optimizer to check everything before \
                            the optimizer with sgd or adamw";
                self.problem(&[TYPE], text);
                None
            }
        }
    }

    fn adam(&mut self, is_adamw: bool) -> Optimizer {
        self.check_params(ADAM_PARAMS);
        let torch_adam = self.boolean(&param("torch_adam")) == Some(true);
        // "Adam" is AdamW too, unless adam_w_mode is false.
        let decoupled = is_adamw || self.boolean(&param("adam_w_mode")) != Some(false);
        // The default decay is 0.01 in torch.optim.AdamW, and 0 in DeepSpeed's FusedAdam and DeepSpeedCPUAdam and
        // in torch.optim.Adam.
        let default_decay = if torch_adam && decoupled { 0.01 } else { 0.0 };
        let weight_decay = self.number(&param("weight_decay")).unwrap_or(default_decay);
        if !decoupled && weight_decay != 0.0 {
            self.lacks("weight_decay");
        }
        self.lacks_unless("bias_correction", true);
        self.lacks_unless("amsgrad", false);
        self.lacks_unless("maximize", false);
        Optimizer::Adamw {
            lr: self.number(&param("lr")).unwrap_or(1e-3),
            betas: self.betas().unwrap_or([0.9, 0.999]),
            eps: self.number(&param("eps")).unwrap_or(1e-8),
            weight_decay,
        }
    }

    fn sgd(&mut self) -> Optimizer {
        self.check_params(SGD_PARAMS);
        for name in ["momentum", "weight_decay"] {
            if self.number(&param(name)).is_some_and(|value| value != 0.0) {
                self.lacks(name);
            }
        }
        self.lacks_unless("maximize", false);
        Optimizer::Sgd { lr: self.number(&param("lr")).unwrap_or(1e-3) }
    }

    /// Checks the names of the parameters, because DeepSpeed passes them on to a Python constructor.
    fn check_params(&mut self, known: &'static str) {
        self.check_keys(PARAMS, "optimizer.params", known);
        for path in known.split_ascii_whitespace().map(param) {
            if self.is_auto(&path) {
                self.auto.push(path);
            }
        }
    }

    /// Reports a parameter that zprobe's optimizers do not have.
    fn lacks(&mut self, name: &str) {
        if self.is_followed() {
            let text = "zprobe's own optimizer has no such variant; pass --optimizer to run with another optimizer, \
                        or remove the parameter in a copy of the file";
            self.problem(&[&param(name)], text);
        } else {
            self.note(
                &[&param(name)],
                "not used: zprobe runs its own optimizer in place of the file's",
            );
        }
    }

    fn lacks_unless(&mut self, name: &str, only: bool) {
        if self.boolean(&param(name)) == Some(!only) {
            self.lacks(name);
        }
    }

    fn betas(&mut self) -> Option<[f64; 2]> {
        let wanted = "a list of two numbers, 0 or more and below 1";
        self.read(&param("betas"), wanted, |value| {
            let betas: [f64; 2] = serde_json::from_value(value.clone()).ok()?;
            betas.iter().all(|beta| (0.0..1.0).contains(beta)).then_some(betas)
        })
    }
}

/// The path of a parameter.
fn param(name: &str) -> String {
    format!("{PARAMS}/{name}")
}
