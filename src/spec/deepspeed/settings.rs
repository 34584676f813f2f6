//! What a file says about the run, with DeepSpeed's defaults where it says nothing.

use crate::spec::{Dtype, Invalid, Optimizer, SpecRequest};

use super::check::Checked;
use super::document::{Json, Member, member};
use super::message::{Flag, Problem, Remark, Spot};
use super::optimizer;
use super::registry::OLD_BF16;

/// `reduce_bucket_size` where a file does not set it (`DeepSpeedZeroConfig` in
/// `runtime/zero/config.py`).
const DEFAULT_BUCKET: usize = 500_000_000;

/// A value of the file, and its key.
#[derive(Clone, Debug)]
pub(super) struct Set<T> {
    pub value: T,
    pub spot: Spot,
}

/// What a file says about the run.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// `train_batch_size`
    pub train: Option<Set<usize>>,
    /// `train_micro_batch_size_per_gpu`
    pub micro: Option<Set<usize>>,
    /// `gradient_accumulation_steps`
    pub accumulation: Option<Set<usize>>,
    /// Whether one of the three is `"auto"`.
    pub batch_is_auto: bool,
    /// ZeRO stage; 0 without the section.
    pub stage: u8,
    /// The model's dtype; `None` when it is left to `"auto"`.
    pub dtype: Option<Dtype>,
    /// `data_types.grad_accum_dtype`
    pub grad_accum_dtype: Option<Set<Dtype>>,
    /// `communication_data_type`
    pub comm_dtype: Option<Dtype>,
    /// `zero_optimization.reduce_bucket_size`; `None` when it is left to `"auto"`.
    pub reduce_bucket_size: Option<usize>,
    /// `optimizer`; `None` when the caller passes one to DeepSpeed.
    pub optimizer: Option<Optimizer>,
}

impl Settings {
    /// Reads what is used of a file. Values of the wrong type have been reported already and count
    /// as not set.
    pub(super) fn read(top: &[Member], checked: &mut Checked) -> Settings {
        let batch = |key| set_whole(top, key);
        let is_auto = |key| member(top, key).is_some_and(|member| member.value.is_auto());
        let batch_keys =
            ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"];
        let zero = section(top, "zero_optimization");
        Settings {
            train: batch(batch_keys[0]),
            micro: batch(batch_keys[1]),
            accumulation: batch(batch_keys[2]),
            batch_is_auto: batch_keys.into_iter().any(is_auto),
            stage: stage(top, checked),
            dtype: dtype(top, &mut checked.problems),
            grad_accum_dtype: grad_accum_dtype(section(top, "data_types"), &mut checked.problems),
            comm_dtype: comm_dtype(top, &mut checked.problems),
            reduce_bucket_size: reduce_bucket_size(zero, &mut checked.problems),
            optimizer: optimizer::read(section(top, "optimizer"), checked),
        }
    }
}

/// The members of a section; none when the file does not have it.
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

/// `get_zero_config` and `read_zero_config_deprecated` in `runtime/zero/config.py`.
fn stage(top: &[Member], checked: &mut Checked) -> u8 {
    let Checked { problems, remarks, .. } = checked;
    let zero = member(top, "zero_optimization");
    let (set, stage) = match zero.map(|zero| (zero, &zero.value)) {
        Some((zero, Json::Bool(enabled))) => {
            let stage = u8::from(*enabled);
            remarks.push(Remark {
                spots: vec![zero.spot.clone()],
                text: format!(
                    "a boolean is the old way to say {{\"stage\": {stage}}}, and read as that"
                ),
            });
            (Some(zero), stage)
        }
        Some((zero, Json::Object(members))) => match member(members, "stage") {
            Some(set) => match set.value.as_whole() {
                Some(stage @ 0..=3) => (Some(set), stage as u8),
                Some(stage) => {
                    let text = format!("{stage} is not a ZeRO stage; they are 0, 1, 2 and 3");
                    problems.push(Problem::mistake(vec![set.spot.clone()], text));
                    return 0;
                }
                None if set.value.is_auto() || set.value == Json::Null => (Some(set), 0),
                // Reported already.
                None => return 0,
            },
            None => (Some(zero), 0),
        },
        Some((_, Json::Null)) | None => (None, 0),
        // Reported already.
        Some(_) => return 0,
    };
    if lacks_stage(stage) {
        let there: Vec<u8> = (0..=3).filter(|&stage| !lacks_stage(stage)).collect();
        let advice = there.first().map_or_else(String::new, |first| {
            let there: Vec<String> = there.iter().map(u8::to_string).collect();
            format!(
                ": the native engine has stage {}; pass --stage {first} to run the rest of the \
                 file with it",
                there.join(" and ")
            )
        });
        let absent = match set {
            Some(set) if set.key == "stage" && set.value.as_whole().is_some() => "",
            Some(Member { value: Json::Bool(_), .. }) => "",
            Some(_) => "no stage is set, which means stage 0; ",
            None => "no zero_optimization section, which means stage 0; ",
        };
        problems.push(Problem::not_yet(
            set.map(|set| set.spot.clone()).into_iter().collect(),
            Some(Flag::Stage),
            format!("{absent}stage {stage} is not there yet{advice}"),
        ));
    }
    stage
}

/// `DeepSpeedEngine.get_data_types` in `runtime/engine.py`, and the assertion in
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
                "both are enabled, and DeepSpeed trains in one of them; disable the other",
            ));
            Some(Dtype::Bf16)
        }
        (Some(_), None) => Some(Dtype::Bf16),
        (None, Some(fp16)) => {
            if lacks_dtype(Dtype::Fp16) {
                problems.push(Problem::not_yet(
                    vec![fp16.spot],
                    Some(Flag::Dtype),
                    "fp16 is not there yet: the native engine has bf16 and fp32; pass --dtype \
                     bf16 to run the rest of the file with it",
                ));
            }
            Some(Dtype::Fp16)
        }
        (None, None) if [bf16, fp16].into_iter().flatten().any(|m| m.value.is_auto()) => None,
        (None, None) => Some(Dtype::Fp32),
    }
}

/// `DtypeEnum` in `runtime/config.py`.
fn grad_accum_dtype(data_types: &[Member], problems: &mut Vec<Problem>) -> Option<Set<Dtype>> {
    let set = member(data_types, "grad_accum_dtype").filter(|set| !set.value.is_auto())?;
    let Json::Text(name) = &set.value else { return None };
    let spot = set.spot.clone();
    let value = match name.as_str() {
        "torch.float32" | "fp32" | "float32" | "float" => Dtype::Fp32,
        "torch.bfloat16" | "bf16" | "bfloat16" => Dtype::Bf16,
        "torch.float16" | "fp16" | "float16" | "half" => Dtype::Fp16,
        "torch.int8" | "int8" => {
            let text = "int8 is not there yet: the native engine accumulates in bf16 and fp32";
            problems.push(Problem::not_yet(vec![spot], Some(Flag::GradAccumDtype), text));
            return None;
        }
        _ => {
            problems.push(Problem::mistake(vec![spot], unknown_dtype(name)));
            return None;
        }
    };
    refuse_fp16(value, &spot, (Flag::GradAccumDtype, "--grad-accum-dtype"), problems);
    Some(Set { value, spot })
}

/// `get_communication_data_type` in `runtime/config.py`, which does not mind the case.
fn comm_dtype(top: &[Member], problems: &mut Vec<Problem>) -> Option<Dtype> {
    let set = member(top, "communication_data_type").filter(|set| !set.value.is_auto())?;
    let Json::Text(name) = &set.value else { return None };
    let Some(value) = Dtype::ALL.iter().copied().find(|d| d.name() == name.to_lowercase()) else {
        problems.push(Problem::mistake(vec![set.spot.clone()], unknown_dtype(name)));
        return None;
    };
    refuse_fp16(value, &set.spot, (Flag::CommDtype, "--comm-dtype"), problems);
    Some(value)
}

fn unknown_dtype(name: &str) -> String {
    format!(
        "{name:?} is not a dtype that DeepSpeed reduces in; write \"fp32\", \"bf16\" or \"fp16\""
    )
}

fn refuse_fp16(dtype: Dtype, spot: &Spot, flag: (Flag, &str), problems: &mut Vec<Problem>) {
    if dtype == Dtype::Fp16 && lacks_dtype(dtype) {
        let (flag, name) = flag;
        let text = format!(
            "fp16 is not there yet: the native engine has bf16 and fp32; pass {name} bf16 or fp32"
        );
        problems.push(Problem::not_yet(vec![spot.clone()], Some(flag), text));
    }
}

fn reduce_bucket_size(zero: &[Member], problems: &mut Vec<Problem>) -> Option<usize> {
    let Some(set) = member(zero, "reduce_bucket_size") else { return Some(DEFAULT_BUCKET) };
    if set.value.is_auto() {
        return None;
    }
    match set.value.as_whole() {
        Some(0) => {
            let text = "a bucket of 0 elements is not there yet; set it to 1 in a copy of the file \
                        to have every gradient reduced by itself, or pass --reduce-bucket-size";
            let flag = Some(Flag::ReduceBucketSize);
            problems.push(Problem::not_yet(vec![set.spot.clone()], flag, text));
            None
        }
        Some(size) => usize::try_from(size).ok(),
        None => Some(DEFAULT_BUCKET),
    }
}

/// Asks [`SpecRequest::resolve`], which alone knows what the native engine has.
fn lacks_stage(stage: u8) -> bool {
    let request = SpecRequest { stage: Some(stage), ..SpecRequest::default() };
    matches!(request.resolve(), Err(Invalid::Stage(_)))
}

fn lacks_dtype(dtype: Dtype) -> bool {
    let request = SpecRequest { dtype: Some(dtype), ..SpecRequest::default() };
    matches!(request.resolve(), Err(Invalid::Fp16 { .. }))
}

/// Whether the native engine lacks accumulation in `accum` for a model in `dtype`.
pub(super) fn lacks_accumulation(dtype: Dtype, accum: Dtype) -> bool {
    let request =
        SpecRequest { dtype: Some(dtype), grad_accum_dtype: Some(accum), ..SpecRequest::default() };
    matches!(request.resolve(), Err(Invalid::NarrowAccumulation { .. }))
}
