//! Reads the section `optimizer` of a DeepSpeed file, and finds the algorithm that DeepSpeed would build from it.

use crate::spec::Optimizer;
use crate::spec::settings::{Setting as _, TABLE};

use super::check::Checked;
use super::document::{Json, Member, member, short};
use super::message::Problem;
use super::registry::nearest;

/// The types that `DeepSpeedConfig._initialize_params` lowercases before the comparison (`DEEPSPEED_OPTIMIZERS` in
/// `runtime/config.py`). Any other type is the name of a class in `torch.optim`, including its case.
const ANY_CASE: &[&str] = &[
    "adagrad",
    "adam",
    "adamw",
    "lamb",
    "onebitadam",
    "zerooneadam",
    "onebitlamb",
    "muadam",
    "muadamw",
    "musgd",
    "lion",
    "muon",
];

/// The parameters of DeepSpeed's and torch's Adam variants, and of `_configure_basic_optimizer`.
const ADAM_PARAMS: &[&str] = &[
    "lr",
    "betas",
    "eps",
    "weight_decay",
    "torch_adam",
    "adam_w_mode",
    "bias_correction",
    "amsgrad",
    "maximize",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
    "set_grad_none",
    "fp32_optimizer_states",
];

/// The parameters of `torch.optim.SGD`.
const SGD_PARAMS: &[&str] = &[
    "lr",
    "momentum",
    "dampening",
    "weight_decay",
    "nesterov",
    "maximize",
    "foreach",
    "fused",
    "differentiable",
];

/// Reads the section as `DeepSpeedEngine._configure_basic_optimizer` (`runtime/engine.py`) does. `None` if the
/// section names no type, because the optimizer is then passed to `deepspeed.initialize`, and if a problem was
/// reported.
pub(super) fn read(section: &[Member], checked: &mut Checked) -> Option<Optimizer> {
    let Checked { problems, auto, .. } = checked;
    let kind = member(section, "type")?;
    let Json::Text(name) = &kind.value else { return None };
    let params = match member(section, "params") {
        Some(Member { value: Json::Object(params), .. }) => params.as_slice(),
        Some(other) if other.value != Json::Null => {
            let text = format!("must be an object, not {}", other.value.in_words());
            problems.push(Problem::mistake(vec![other.spot.clone()], text));
            return None;
        }
        _ => &[],
    };
    let left_open = params.iter().filter(|param| param.value.is_auto());
    auto.extend(left_open.map(|param| param.spot.clone()));
    let lowercase = name.to_lowercase();
    let mut params = Params { members: params, problems };
    match lowercase.as_str() {
        "adam" | "adamw" => Some(params.adam(&lowercase)),
        "sgd" if name == "SGD" => Some(params.sgd()),
        "sgd" => {
            let text = format!("torch.optim has no optimizer {:?}; write \"SGD\"", short(name));
            params.problems.push(Problem::mistake(vec![kind.spot.clone()], text));
            None
        }
        _ => {
            let source = if ANY_CASE.contains(&lowercase.as_str()) { "" } else { "torch.optim's " };
            let text = format!(
                "{source}{} is not supported yet: zprobe runs its own SGD or AdamW instead of a file's optimizer; \
                 pass --optimizer to check everything before the optimizer with one of the two",
                short(name)
            );
            let flag = TABLE.optimizer.flag();
            params.problems.push(Problem::replaced(vec![kind.spot.clone()], flag, text));
            None
        }
    }
}

/// The parameters of the file's optimizer, and the problems with them.
struct Params<'a> {
    members: &'a [Member],
    problems: &'a mut Vec<Problem>,
}

impl Params<'_> {
    fn adam(&mut self, lowercase: &str) -> Optimizer {
        self.refuse_unknown(ADAM_PARAMS);
        let torch_adam = self.flag("torch_adam", false);
        // "Adam" is AdamW too, unless adam_w_mode is false.
        let decoupled = lowercase == "adamw" || self.flag("adam_w_mode", true);
        // The default decay is 0.01 in torch.optim.AdamW, and 0 in DeepSpeed's FusedAdam and DeepSpeedCPUAdam and
        // in torch.optim.Adam.
        let default_decay = if torch_adam && decoupled { 0.01 } else { 0.0 };
        let weight_decay = self.number("weight_decay", default_decay);
        if !decoupled && weight_decay != 0.0 {
            self.lacking(
                "weight_decay",
                "with adam_w_mode false, decay becomes part of the gradient, but the native \
                 engine's AdamW keeps the two apart",
            );
        }
        self.only("bias_correction", true);
        self.only("amsgrad", false);
        self.only("maximize", false);
        Optimizer::Adamw {
            lr: self.number("lr", 1e-3),
            betas: self.betas(),
            eps: self.number("eps", 1e-8),
            weight_decay,
        }
    }

    fn sgd(&mut self) -> Optimizer {
        self.refuse_unknown(SGD_PARAMS);
        for name in ["momentum", "weight_decay"] {
            if self.number(name, 0.0) != 0.0 {
                self.lacking(name, "the native engine has only plain SGD");
            }
        }
        self.only("maximize", false);
        Optimizer::Sgd { lr: self.number("lr", 1e-3) }
    }

    /// Refuses unknown parameters, because DeepSpeed passes all parameters on to a Python constructor, which
    /// rejects unknown ones.
    fn refuse_unknown(&mut self, known: &[&str]) {
        for param in self.members.iter().filter(|param| !known.contains(&param.key.as_str())) {
            let advice = if param.key == "max_grad_norm" {
                "use the top-level gradient_clipping".to_owned()
            } else {
                nearest(&param.key, known.iter().map(|name| (*name, *name))).map_or_else(
                    || format!("it has {}", known.join(", ")),
                    |name| format!("did you mean {name}?"),
                )
            };
            let text = format!("this optimizer has no such parameter; {advice}");
            let note = "not used: zprobe brings an optimizer of its own";
            self.problems.push(Problem::unknown(vec![param.spot.clone()], text, note));
        }
    }

    /// Finds a parameter that the file sets; `"auto"` and null count as not set.
    fn set(&self, name: &str) -> Option<&Member> {
        member(self.members, name).filter(|m| m.value != Json::Null && !m.value.is_auto())
    }

    fn refuse(&mut self, name: &str, wanted: &str) {
        if let Some(param) = self.set(name) {
            let text = format!("must be {wanted}, not {}", param.value.in_words());
            self.problems.push(Problem::mistake(vec![param.spot.clone()], text));
        }
    }

    fn lacking(&mut self, name: &str, why: &str) {
        if let Some(param) = self.set(name) {
            let text = format!(
                "{} is not supported yet: {why}; pass --optimizer to run with another optimizer, or \
                 remove the parameter in a copy of the file",
                param.value.in_words()
            );
            let flag = Some(TABLE.optimizer.flag());
            self.problems.push(Problem::not_yet(vec![param.spot.clone()], flag, text));
        }
    }

    fn number(&mut self, name: &str, default: f64) -> f64 {
        let Some(param) = self.set(name) else { return default };
        param.value.as_non_negative().unwrap_or_else(|| {
            self.refuse(name, "a number, 0 or more");
            default
        })
    }

    fn flag(&mut self, name: &str, default: bool) -> bool {
        match self.set(name).map(|param| &param.value) {
            None => default,
            Some(Json::Bool(value)) => *value,
            Some(_) => {
                self.refuse(name, "true or false");
                default
            }
        }
    }

    fn only(&mut self, name: &str, there: bool) {
        if self.flag(name, there) != there {
            self.lacking(name, "the native engine has only the plain algorithms");
        }
    }

    fn betas(&mut self) -> [f64; 2] {
        const DEFAULT: [f64; 2] = [0.9, 0.999];
        let Some(param) = self.set("betas") else { return DEFAULT };
        if let Json::List(betas) = &param.value
            && let [first, second] = betas.as_slice()
            && let (Some(first), Some(second)) = (first.as_number(), second.as_number())
            && [first, second].iter().all(|beta| (0.0..1.0).contains(beta))
        {
            return [first, second];
        }
        self.refuse("betas", "a list of two numbers, 0 or more and below 1");
        DEFAULT
    }
}
