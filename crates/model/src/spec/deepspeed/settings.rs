//! The settings of a run as a DeepSpeed file gives them, with DeepSpeed's defaults for keys that the file leaves out.

use crate::spec::settings::{Setting as _, TABLE};
use crate::spec::{Dtype, Invalid, LossScale, Offload, Optimizer, SpecRequest};

use super::check::Checked;
use super::document::{Json, Member, member, short};
use super::message::{Problem, Remark, Spot};
use super::native::refuses;
use super::optimizer;
use super::registry::OLD_BF16;

/// DeepSpeed's default for `reduce_bucket_size` and `allgather_bucket_size` (`DeepSpeedZeroConfig` in
/// `runtime/zero/config.py`).
const DEFAULT_BUCKET: usize = 500_000_000;

/// DeepSpeed's default for `initial_scale_power` (`DeepSpeedFP16Config` in `runtime/precision_config.py`).
const DEFAULT_POWER: u32 = 16;

/// The exponent of the largest power of two that fp32 holds.
pub(super) const MOST_POWER: u32 = 127;

/// A value that the file sets, with the position of its key.
#[derive(Clone, Debug)]
pub(super) struct Set<T> {
    pub value: T,
    pub spot: Spot,
}

/// The settings of a run as a DeepSpeed file gives them.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The value of `train_batch_size`.
    pub train: Option<Set<usize>>,
    /// The value of `train_micro_batch_size_per_gpu`.
    pub micro: Option<Set<usize>>,
    /// The value of `gradient_accumulation_steps`.
    pub accumulation: Option<Set<usize>>,
    /// True if one of the three batch sizes is `"auto"`.
    pub batch_is_auto: bool,
    /// The ZeRO stage; 0 without the section, `None` if the file leaves it to `"auto"` or gives a wrong value.
    pub stage: Option<u8>,
    /// The model's dtype; `None` if the file leaves it to `"auto"`.
    pub dtype: Option<Dtype>,
    /// The value of `data_types.grad_accum_dtype`.
    pub grad_accum_dtype: Option<Set<Dtype>>,
    /// The value of `communication_data_type`.
    pub comm_dtype: Option<Dtype>,
    /// The value of `zero_optimization.reduce_bucket_size`; `None` if the file leaves it to `"auto"`.
    pub reduce_bucket_size: Option<usize>,
    /// The position of `zero_optimization.reduce_bucket_size`, if the file sets it.
    pub reduce_bucket_spot: Option<Spot>,
    /// The value of `zero_optimization.allgather_bucket_size`; `None` if the file leaves it to `"auto"`.
    pub allgather_bucket_size: Option<usize>,
    /// The value of `zero_optimization.overlap_comm`.
    pub overlap_comm: Option<Set<bool>>,
    /// The value of `zero_optimization.contiguous_gradients`.
    pub contiguous_gradients: Option<Set<bool>>,
    /// The value of `zero_optimization.reduce_scatter`.
    pub reduce_scatter: Option<Set<bool>>,
    /// The value of `zero_optimization.offload_optimizer.device`; `None` for no offload.
    pub offload: Option<Set<Offload>>,
    /// The value of `gradient_clipping`.
    pub gradient_clipping: Option<f64>,
    /// The value of `fp16.loss_scale`; `None` for a dynamic scale.
    pub static_scale: Option<Set<f64>>,
    /// The value of `fp16.initial_scale_power`.
    pub initial_scale_power: Option<Set<i64>>,
    /// The keys that change how a dynamic scale is adjusted.
    pub scale_moves: Vec<Spot>,
    /// The optimizer of the section `optimizer`; `None` if the caller passes an optimizer to DeepSpeed.
    pub optimizer: Option<Optimizer>,
}

impl Settings {
    /// Reads the settings that zprobe uses. Values of the wrong type count as not set, because they have already
    /// been reported.
    pub(super) fn read(top: &[Member], checked: &mut Checked) -> Settings {
        let batch = |key| set_whole(top, key);
        let is_auto = |key| member(top, key).is_some_and(|member| member.value.is_auto());
        let batch_keys =
            ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"];
        let zero = section(top, "zero_optimization");
        let fp16 = section(top, "fp16");
        Settings {
            train: batch(batch_keys[0]),
            micro: batch(batch_keys[1]),
            accumulation: batch(batch_keys[2]),
            batch_is_auto: batch_keys.into_iter().any(is_auto),
            stage: stage(top, checked),
            dtype: dtype(top, &mut checked.problems),
            grad_accum_dtype: grad_accum_dtype(section(top, "data_types"), &mut checked.problems),
            comm_dtype: comm_dtype(top, &mut checked.problems),
            reduce_bucket_size: bucket_size(
                member(zero, "reduce_bucket_size"),
                TABLE.reduce_bucket_size.flag(),
                &mut checked.problems,
            ),
            reduce_bucket_spot: member(zero, "reduce_bucket_size").map(|set| set.spot.clone()),
            allgather_bucket_size: bucket_size(
                allgather_bucket_size(top, zero),
                TABLE.allgather_bucket_size.flag(),
                &mut checked.problems,
            ),
            overlap_comm: switch(zero, "overlap_comm"),
            contiguous_gradients: switch(zero, "contiguous_gradients"),
            reduce_scatter: switch(zero, "reduce_scatter"),
            offload: offload(zero, checked),
            gradient_clipping: number(top, "gradient_clipping"),
            static_scale: static_scale(fp16),
            initial_scale_power: whole(fp16, "initial_scale_power"),
            scale_moves: scale_moves(fp16),
            optimizer: optimizer::read(section(top, "optimizer"), checked),
        }
    }

    /// The scale of an fp16 model's loss; `None` for a scale that is below 1 or that fp32 does not hold.
    pub(super) fn loss_scale(&self) -> Option<LossScale> {
        if let Some(set) = &self.static_scale {
            return Some(LossScale::Static { scale: set.value });
        }
        let initial_power = match &self.initial_scale_power {
            Some(set) => u32::try_from(set.value).ok().filter(|&power| power <= MOST_POWER)?,
            None => DEFAULT_POWER,
        };
        Some(LossScale::Dynamic { initial_power })
    }
}

/// The members of a section; empty if the file does not have the section.
fn section<'a>(members: &'a [Member], key: &str) -> &'a [Member] {
    match member(members, key) {
        Some(Member { value: Json::Object(members), .. }) => members,
        _ => &[],
    }
}

fn set_whole(members: &[Member], key: &str) -> Option<Set<usize>> {
    let member = member(members, key)?;
    let value = usize::try_from(member.value.as_whole()?).ok().filter(|&value| value > 0)?;
    Some(Set { value, spot: member.spot.clone() })
}

/// The ZeRO stage, as read by `get_zero_config` and `read_zero_config_deprecated` in
/// `runtime/zero/config.py`.
fn stage(top: &[Member], checked: &mut Checked) -> Option<u8> {
    let Checked { problems, remarks, .. } = checked;
    let zero = member(top, "zero_optimization");
    match zero.map(|zero| (zero, &zero.value)) {
        Some((zero, Json::Bool(enabled))) => {
            let stage = u8::from(*enabled);
            remarks.push(Remark {
                spots: vec![zero.spot.clone()],
                text: format!(
                    "a boolean is the old form of {{\"stage\": {stage}}}, and is read as such"
                ),
            });
            Some(stage)
        }
        Some((_, Json::Object(members))) => {
            let Some(set) = member(members, "stage").filter(|set| set.value != Json::Null) else {
                return Some(0);
            };
            match set.value.as_whole()? {
                stage @ 0..=3 => Some(stage as u8),
                stage => {
                    let text = format!("{stage} is not a ZeRO stage; use 0, 1, 2 or 3");
                    problems.push(Problem::mistake(vec![set.spot.clone()], text));
                    None
                }
            }
        }
        None | Some((_, Json::Null)) => Some(0),
        // A value of a wrong type has already been reported.
        Some(_) => None,
    }
}

/// The model's dtype, as in `DeepSpeedEngine.get_data_types` (`runtime/engine.py`), with the assertion of
/// `DeepSpeedConfig._initialize_params`.
fn dtype(top: &[Member], problems: &mut Vec<Problem>) -> Option<Dtype> {
    let fp16 = member(section(top, "fp16"), "enabled");
    let bf16_section = match member(top, "bf16") {
        Some(new) if new.value != Json::Null => "bf16",
        _ => OLD_BF16,
    };
    let bf16 = member(section(top, bf16_section), "enabled");
    let is_on = |switch: Option<&Member>| switch.filter(|m| m.value == Json::Bool(true)).cloned();
    match (is_on(bf16), is_on(fp16)) {
        (Some(bf16), Some(fp16)) => {
            problems.push(Problem::mistake(
                vec![bf16.spot, fp16.spot],
                "bf16 and fp16 are both enabled, but DeepSpeed trains in one of them; disable the other",
            ));
            Some(Dtype::Bf16)
        }
        (Some(_), None) => Some(Dtype::Bf16),
        (None, Some(_)) => Some(Dtype::Fp16),
        (None, None) if [bf16, fp16].into_iter().flatten().any(|m| m.value.is_auto()) => None,
        (None, None) => Some(Dtype::Fp32),
    }
}

/// The accumulation dtype, with the names of `DtypeEnum` in `runtime/config.py`.
fn grad_accum_dtype(data_types: &[Member], problems: &mut Vec<Problem>) -> Option<Set<Dtype>> {
    let set = member(data_types, "grad_accum_dtype").filter(|set| !set.value.is_auto())?;
    let Json::Text(name) = &set.value else { return None };
    let spot = set.spot.clone();
    let value = match name.as_str() {
        "torch.float32" | "fp32" | "float32" | "float" => Dtype::Fp32,
        "torch.bfloat16" | "bf16" | "bfloat16" => Dtype::Bf16,
        "torch.float16" | "fp16" | "float16" | "half" => Dtype::Fp16,
        "torch.int8" | "int8" => {
            let text =
                "int8 is not supported yet: the native engine accumulates in bf16, fp16 and fp32";
            problems.push(Problem::not_yet(vec![spot], Some(TABLE.grad_accum_dtype.flag()), text));
            return None;
        }
        _ => {
            problems.push(Problem::mistake(vec![spot], unknown_dtype(name)));
            return None;
        }
    };
    Some(Set { value, spot })
}

/// The communication dtype, as read by `get_communication_data_type` in `runtime/config.py`, which
/// ignores case.
fn comm_dtype(top: &[Member], problems: &mut Vec<Problem>) -> Option<Dtype> {
    let set = member(top, "communication_data_type").filter(|set| !set.value.is_auto())?;
    let Json::Text(name) = &set.value else { return None };
    let Some(value) = Dtype::ALL.iter().copied().find(|d| d.name() == name.to_lowercase()) else {
        problems.push(Problem::mistake(vec![set.spot.clone()], unknown_dtype(name)));
        return None;
    };
    Some(value)
}

fn unknown_dtype(name: &str) -> String {
    format!(
        "{:?} is not a dtype that DeepSpeed reduces in; write \"fp32\", \"bf16\" or \"fp16\"",
        short(name)
    )
}

/// The value of a key, if the file sets it to a boolean.
fn switch(section: &[Member], key: &str) -> Option<Set<bool>> {
    match member(section, key)? {
        Member { value: Json::Bool(value), spot, .. } => {
            Some(Set { value: *value, spot: spot.clone() })
        }
        _ => None,
    }
}

/// The value of a key, if the file sets it to a number that is 0 or more.
fn number(section: &[Member], key: &str) -> Option<f64> {
    member(section, key)?.value.as_non_negative()
}

/// The value of `fp16.loss_scale`; `None` for 0, which asks for a dynamic scale.
fn static_scale(fp16: &[Member]) -> Option<Set<f64>> {
    let value = number(fp16, "loss_scale").filter(|&scale| scale > 0.0)?;
    Some(Set { value, spot: member(fp16, "loss_scale")?.spot.clone() })
}

/// The key for the all-gather bucket size. If `zero_optimization` is a boolean, it is a top-level key
/// (`read_zero_config_deprecated` in `runtime/zero/config.py`).
fn allgather_bucket_size<'a>(top: &'a [Member], zero: &'a [Member]) -> Option<&'a Member> {
    match member(top, "zero_optimization")?.value {
        Json::Bool(true) => member(top, "allgather_size"),
        _ => member(zero, "allgather_bucket_size"),
    }
}

/// The offload of optimizer states, from `offload_optimizer` or the older `cpu_offload`
/// (`DeepSpeedConfigModel._process_deprecated_field` in `runtime/config_utils.py`).
fn offload(zero: &[Member], checked: &mut Checked) -> Option<Set<Offload>> {
    let Checked { problems, remarks, .. } = checked;
    let cpu = |spot: &Spot| Some(Set { value: Offload::Cpu, spot: spot.clone() });
    let new = member(zero, "offload_optimizer").filter(|set| set.value != Json::Null);
    if let Some(Set { value, spot }) = switch(zero, "cpu_offload") {
        if let Some(new) = new {
            problems.push(Problem::mistake(
                vec![spot, new.spot.clone()],
                "cpu_offload is the old name of offload_optimizer, and DeepSpeed refuses to start with \
                 both; remove cpu_offload",
            ));
            return None;
        }
        let device = if value { "cpu" } else { "none" };
        remarks.push(Remark {
            spots: vec![spot.clone()],
            text: format!(
                "the old form of \"offload_optimizer\": {{\"device\": \"{device}\"}}, and is read \
                 as such"
            ),
        });
        return if value { cpu(&spot) } else { None };
    }
    let set = member(section(zero, "offload_optimizer"), "device")?;
    match &set.value {
        Json::Text(device) if device == "cpu" => cpu(&set.spot),
        Json::Text(device) if device == "nvme" => {
            problems.push(Problem::not_yet(
                vec![set.spot.clone()],
                Some(TABLE.offload.flag()),
                "\"nvme\" is not supported yet: the native engine offloads to the host's memory; pass \
                 --offload cpu to run the rest of the file that way",
            ));
            None
        }
        _ => None,
    }
}

/// The value of a key, if the file sets it to a whole number.
fn whole(section: &[Member], key: &str) -> Option<Set<i64>> {
    let member = member(section, key)?;
    Some(Set { value: member.value.as_whole()?, spot: member.spot.clone() })
}

/// The keys that make a dynamic scale move differently from DeepSpeed's defaults, which the native engine follows.
fn scale_moves(fp16: &[Member]) -> Vec<Spot> {
    let moves_otherwise = |set: &&Member| {
        let is_other = |default| set.value.as_number().is_some_and(|number| number != default);
        match set.key.as_str() {
            "loss_scale_window" => is_other(1000.0),
            "hysteresis" => is_other(2.0),
            "min_loss_scale" => is_other(1.0),
            "consecutive_hysteresis" => set.value == Json::Bool(true),
            _ => false,
        }
    };
    fp16.iter().filter(moves_otherwise).map(|set| set.spot.clone()).collect()
}

fn bucket_size(
    set: Option<&Member>,
    flag: &'static str,
    problems: &mut Vec<Problem>,
) -> Option<usize> {
    let Some(set) = set else { return Some(DEFAULT_BUCKET) };
    if set.value.is_auto() {
        return None;
    }
    match set.value.as_whole() {
        Some(0) => {
            let text = format!(
                "a bucket of 0 elements is not supported yet; set it to 1 in a copy of the file for the \
                 smallest possible pieces, or pass {flag}"
            );
            problems.push(Problem::not_yet(vec![set.spot.clone()], Some(flag), text));
            None
        }
        Some(size) => usize::try_from(size).ok(),
        None => Some(DEFAULT_BUCKET),
    }
}

/// True if the native engine does not support accumulation in `accum` for a model in `dtype`.
pub(super) fn lacks_accumulation(dtype: Dtype, accum: Dtype) -> bool {
    let request =
        SpecRequest { dtype: Some(dtype), grad_accum_dtype: Some(accum), ..SpecRequest::default() };
    refuses(&request, |problem| matches!(problem, Invalid::NarrowAccumulation { .. }))
}
