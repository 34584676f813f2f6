//! The configuration that the real DeepSpeed gets: the user's file, if there is one, overridden by the flags and by
//! the settings that zprobe needs.

use serde_json::{Map, Number, Value, json};

use crate::spec::{Dtype, LossScale, Optimizer, RunSpec, SpecRequest, settings};

/// The sections that zprobe removes: its ranks bring an optimizer of their own, with the settings of the file, and
/// use no learning rate schedule.
pub(super) const REPLACED: &[&str] = &["optimizer", "scheduler"];

/// The configuration for `spec`: the file into which [`overrule`] has written the flags, or else the settings that
/// follow from the flags. Settings that neither gives are left to DeepSpeed.
pub fn complete(file: Option<Value>, asked: &SpecRequest, spec: &RunSpec) -> Value {
    let mut config = match file {
        Some(Value::Object(members)) => members,
        _ => described(asked, spec),
    };
    let muon = (spec.optimizer == Optimizer::Muon).then(|| muon(config.get("optimizer")));
    config.retain(|key, _| !REPLACED.contains(&key.as_str()));
    if let Some(section) = muon {
        config.insert("optimizer".into(), section);
        // DeepSpeed's own Adam for the parameters that are no matrices has to be compiled.
        put(&mut config, "optimizer.params.torch_adam", true);
    }
    // If the file leaves the dtype to its caller, zprobe sets the dtype.
    if let Some(section) = section_of(spec.dtype).filter(|_| !config.contains_key("bfloat16")) {
        put(&mut config, &format!("{section}.enabled"), true);
    }
    settings::ALL.iter().for_each(|setting| setting.complete(spec, &mut config));
    config.remove("train_batch_size");
    // Allow an optimizer from outside of DeepSpeed, and require no optimizer that must be compiled.
    config.insert("zero_allow_untested_optimizer".into(), true.into());
    config.insert("zero_force_ds_cpu_optimizer".into(), false.into());
    Value::Object(config)
}

/// The section of the optimizer Muon, which DeepSpeed makes itself: that of the file, if its optimizer is Muon.
fn muon(section: Option<&Value>) -> Value {
    let is_muon = |section: &&Value| {
        section["type"].as_str().is_some_and(|name| name.eq_ignore_ascii_case("muon"))
    };
    let default = || json!({"type": "Muon", "params": {"lr": 1.0 / 1024.0}});
    section.filter(is_muon).cloned().unwrap_or_else(default)
}

/// The configuration of a run without a file: the settings that define the run, and nothing else.
fn described(asked: &SpecRequest, spec: &RunSpec) -> Map<String, Value> {
    let described = SpecRequest {
        stage: Some(spec.stage),
        dtype: Some(spec.dtype),
        grad_accum_dtype: Some(spec.grad_accum_dtype),
        reduce_bucket_size: Some(spec.reduce_bucket_size),
        gradient_clipping: Some(spec.gradient_clipping),
        loss_scale: asked.loss_scale.or((spec.dtype == Dtype::Fp16).then_some(spec.loss_scale)),
        ..asked.clone()
    };
    let mut config = Map::new();
    overrule(&mut config, &described);
    config
}

/// Writes the settings of the flags over those of a file.
pub fn overrule(config: &mut Map<String, Value>, asked: &SpecRequest) {
    settings::ALL.iter().for_each(|setting| setting.write(asked, config));
}

/// Turns the model's dtype on and all other dtypes off.
pub fn write_dtype(config: &mut Map<String, Value>, model: &Dtype) {
    config.remove("bfloat16");
    for section in [Dtype::Bf16, Dtype::Fp16].into_iter().filter_map(section_of) {
        if section_of(*model) == Some(section) {
            put(config, &format!("{section}.enabled"), true);
        } else {
            config.remove(section);
        }
    }
}

/// The section that turns a dtype on; `None` for fp32, which needs no section.
fn section_of(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::Bf16 => Some("bf16"),
        Dtype::Fp16 => Some("fp16"),
        Dtype::Fp32 => None,
    }
}

/// Sets the loss scale, static or dynamic.
pub fn write_loss_scale(config: &mut Map<String, Value>, scale: &LossScale) {
    match *scale {
        LossScale::Static { scale } => put(config, "fp16.loss_scale", number(scale)),
        LossScale::Dynamic { initial_power } => {
            put(config, "fp16.loss_scale", 0);
            put(config, "fp16.initial_scale_power", initial_power);
        }
    }
}

/// Sets the value at a dotted path, and creates missing sections.
pub fn put(config: &mut Map<String, Value>, path: &str, value: impl Into<Value>) {
    match path.split_once('.') {
        None => {
            config.insert(path.to_owned(), value.into());
        }
        Some((section, rest)) => {
            let section = config.entry(section).or_insert_with(|| json!({}));
            if !section.is_object() {
                *section = json!({});
            }
            if let Value::Object(members) = section {
                put(members, rest, value);
            }
        }
    }
}

/// A number as Python's hjson reads it: `5e8` and `1.0` are whole numbers. `None` if `value` is not finite.
pub fn number(value: f64) -> Option<Number> {
    const LIMIT: f64 = 1e10;
    if value.fract() == 0.0 && value.abs() < LIMIT {
        return Some((value as i64).into());
    }
    Number::from_f64(value)
}

/// Removes the key at a path such as `zero_optimization/stage`, if it exists.
pub(super) fn remove(members: &mut Map<String, Value>, path: &str) {
    match path.split_once('/') {
        None => drop(members.remove(path)),
        Some((section, rest)) => {
            if let Some(Value::Object(members)) = members.get_mut(section) {
                remove(members, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::deepspeed::DeepSpeedConfig;
    use crate::spec::{Engine, Offload};

    fn configured(file: Option<&Value>, asked: SpecRequest) -> Value {
        let mut request = SpecRequest { engine: Some(Engine::DeepSpeed), ..asked };
        if let Some(file) = file {
            let file = DeepSpeedConfig::parse(&file.to_string(), "file").expect("a readable file");
            file.apply(&mut request).expect("a file that can be run");
        }
        let spec = request.resolve().expect("a valid request");
        spec.deepspeed_config().expect("a configuration for DeepSpeed").clone()
    }

    #[test]
    fn without_a_file_the_flags_are_the_configuration() {
        let config = configured(
            None,
            SpecRequest {
                dtype: Some(Dtype::Fp16),
                stage: Some(2),
                reduce_bucket_size: Some(100),
                offload: Some(Offload::Cpu),
                overlap_comm: Some(true),
                ..SpecRequest::default()
            },
        );
        insta::assert_json_snapshot!(config);
    }

    #[test]
    fn a_dtype_that_the_file_leaves_open_is_the_one_that_runs() {
        let file = json!({
            "train_batch_size": "auto",
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto", "loss_scale": 0},
        });
        for (dtype, on, off) in [(Dtype::Bf16, "bf16", "fp16"), (Dtype::Fp16, "fp16", "bf16")] {
            let asked = SpecRequest { dtype: Some(dtype), ..SpecRequest::default() };
            let config = configured(Some(&file), asked);
            assert_eq!(config[on]["enabled"], true, "{config}");
            assert_ne!(config[off]["enabled"], true, "{config}");
        }
        let config = configured(Some(&file), SpecRequest::default());
        assert_eq!(config["bf16"]["enabled"], true, "zprobe's default: {config}");
    }

    #[test]
    fn a_file_is_passed_on_as_it_is_but_for_what_the_flags_say() {
        let file = json!({
            "train_batch_size": "auto",
            "bf16": {"enabled": true},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "zero_optimization": {"stage": 2, "overlap_comm": "auto", "round_robin_gradients": true},
            "steps_per_print": 10,
        });
        let request = SpecRequest { contiguous_gradients: Some(false), ..SpecRequest::default() };
        insta::assert_json_snapshot!(configured(Some(&file), request));
    }
}
