//! Reads a user's DeepSpeed file as the user wrote it.
//!
//! [`DeepSpeedConfig::read`] reads a file as DeepSpeed would, and compares every key with one table of all keys
//! that DeepSpeed knows and how zprobe treats them. [`DeepSpeedConfig::apply`] fills the settings of a
//! [`SpecRequest`] that the command line left open. If the file does not set a key, DeepSpeed's default applies and
//! not zprobe's, so the run is the one that the file describes.
//!
//! A file is refused with all of its problems at once: mistakes, and settings that zprobe's native engine does not
//! support yet, each with its key path and position. Keys that do not change which gradients are summed are
//! accepted, with a [`Note`] if that may surprise.

mod batch;
mod check;
mod complete;
mod document;
mod hjson;
mod key;
mod member;
mod message;
mod native;
mod optimizer;
mod registry;
mod settings;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use super::settings::{Setting as _, TABLE};
use super::{DEFAULT_WORLD_SIZE, DeepSpeedFile, Dtype, SpecRequest};
use batch::{Asked, Batch, BatchError};
use check::Checked;
pub(super) use complete::{complete, put, write_dtype, write_loss_scale};
pub(super) use document::number;
pub use member::Member;
pub use message::{ConfigError, Note, Problem};
use message::{Kind, MOST_SHOWN, Remark, Spot};
#[cfg(test)]
pub(super) use registry::has_key;
pub use registry::top_level;
use settings::{Set, Settings};

/// The maximum size of a file, in bytes. The longest files that people write have some ten thousand bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The dtype of a model whose dtype the file leaves to `"auto"`.
const AUTO_DTYPE: Dtype = Dtype::Bf16;

/// A DeepSpeed file that has been read. [`DeepSpeedConfig::apply`] reports the problems with running the file,
/// because they may depend on flags.
#[derive(Clone, Debug)]
pub struct DeepSpeedConfig {
    file: String,
    /// The whole file, for the real DeepSpeed.
    content: Value,
    settings: Settings,
    problems: Vec<Problem>,
    remarks: Vec<Remark>,
    auto: Vec<Spot>,
}

impl DeepSpeedConfig {
    /// Reads a DeepSpeed file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if its syntax is wrong.
    pub fn read(path: &Path) -> Result<DeepSpeedConfig, ConfigError> {
        let file = path.display().to_string();
        let mut text = String::new();
        let opened = File::open(path);
        match opened.and_then(|opened| opened.take(MAX_BYTES + 1).read_to_string(&mut text)) {
            Ok(bytes) if bytes as u64 > MAX_BYTES => Err(ConfigError::TooLarge { file }),
            Ok(_) => DeepSpeedConfig::parse(&text, &file),
            Err(source) => Err(ConfigError::Unreadable { file, source }),
        }
    }

    /// Reads the text of a DeepSpeed file; `file` is its name in messages.
    ///
    /// # Errors
    /// Fails if the syntax of the text is wrong.
    pub fn parse(text: &str, file: &str) -> Result<DeepSpeedConfig, ConfigError> {
        let file = file.to_owned();
        let mut repeated = Vec::new();
        let members = match hjson::parse(text, &mut repeated) {
            Ok(members) => members,
            Err(problem) => return Err(ConfigError::unusable(file, vec![problem])),
        };
        let mut checked = check::check(&members);
        checked.problems.append(&mut repeated);
        let settings = Settings::read(&members, &mut checked);
        let Checked { problems, remarks, auto } = checked;
        let content = Value::Object(document::content(&members));
        Ok(DeepSpeedConfig { file, content, settings, problems, remarks, auto })
    }

    /// Fills the settings that `request` leaves open: a flag or variable that was given wins over the file. Returns
    /// the notes for the file's owner.
    ///
    /// # Errors
    /// Fails with all problems of running the file with these flags. The request is then unchanged.
    pub fn apply(mut self, request: &mut SpecRequest) -> Result<Vec<Note>, ConfigError> {
        let use_of_it = request.engine.unwrap_or_default().traits().deepspeed_file;
        if use_of_it == DeepSpeedFile::PassedOn {
            self.leave_to_the_engine();
        }
        let mut filled = request.clone();
        self.fill_dtypes(&mut filled);
        self.fill_batch(&mut filled);
        filled.stage.get_or_insert(self.settings.stage.unwrap_or(0));
        if filled.optimizer.is_none() && self.settings.optimizer.is_none() {
            let text = "no optimizer section, as in scripts that pass an optimizer to deepspeed.initialize; \
                        zprobe's default optimizer runs, --optimizer chooses another";
            self.remarks.push(Remark { spots: Vec::new(), text: text.to_owned() });
        }
        filled.optimizer = filled.optimizer.or(self.settings.optimizer);
        if use_of_it == DeepSpeedFile::Followed {
            self.fill_native(request, &mut filled);
        }
        self.problems.retain(|problem| !problem.is_settled_by(request));
        if !self.problems.is_empty() {
            return Err(ConfigError::unusable(self.file, self.problems));
        }
        if use_of_it == DeepSpeedFile::PassedOn {
            self.keep_content(request, &mut filled);
        }
        *request = filled;
        Ok(self.notes())
    }

    /// Replaces the remarks by notes on what the installed engine decides. The native engine's treatment of a key
    /// does not matter here.
    fn leave_to_the_engine(&mut self) {
        self.remarks.clear();
        for Problem { remark, kind } in &self.problems {
            match kind {
                Kind::Unknown { note } => {
                    Remark::add(&mut self.remarks, remark.spots.clone(), note);
                }
                Kind::NotYet { unless } if *unless == Some(TABLE.optimizer.flag()) => {
                    let text = "not used: zprobe runs an optimizer of its own instead of the file's optimizer";
                    Remark::add(&mut self.remarks, remark.spots.clone(), text);
                }
                Kind::Replaced { by } => {
                    let text =
                        format!("not used: {by} replaces this optimizer, which stays unchecked");
                    Remark::add(&mut self.remarks, remark.spots.clone(), &text);
                }
                _ => {}
            }
        }
    }

    /// Passes the file on to the real DeepSpeed, overridden by the flags of `asked`.
    fn keep_content(&mut self, asked: &SpecRequest, filled: &mut SpecRequest) {
        let file = &self.settings;
        filled.reduce_bucket_size = asked.reduce_bucket_size.or(file.reduce_bucket_size);
        filled.gradient_clipping = asked.gradient_clipping.or(file.gradient_clipping);
        filled.loss_scale = asked.loss_scale.or(file.loss_scale());
        filled.offload = asked.offload.or(file.offload.as_ref().map(|set| set.value));
        filled.comm_dtype = asked.comm_dtype.or(self.settings.comm_dtype);
        if let Value::Object(members) = &mut self.content {
            for spot in &self.auto {
                complete::remove(members, &spot.path);
            }
            complete::overrule(members, asked);
        }
        filled.deepspeed_config = Some(std::mem::take(&mut self.content));
    }

    /// Fills the dtypes of the model, of the accumulation and of the communication.
    ///
    /// Unless the file sets them, the latter two are the model's dtype: `DeepSpeedEngine.get_data_types` and the
    /// property `DeepSpeedEngine.communication_data_type` in `runtime/engine.py`. The property depends on whether
    /// fp16 or bf16 is enabled, and not on the buffer that is reduced. Both reductions cast to this dtype:
    /// `DeepSpeedEngine.allreduce_bucket`, which reduces `BF16_Optimizer`'s fp32 accumulator, and the IPG buckets
    /// of `DeepSpeedZeroOptimizer`, which get the dtype as a constructor argument. So a bf16 model with fp32
    /// accumulation communicates in bf16. (With sequence parallelism, `seq_parallel_communication_data_type`
    /// replaces the property.)
    fn fill_dtypes(&mut self, request: &mut SpecRequest) {
        let dtype = *request.dtype.get_or_insert(self.settings.dtype.unwrap_or(AUTO_DTYPE));
        if let (None, Some(Set { value: accum, spot })) =
            (request.grad_accum_dtype, &self.settings.grad_accum_dtype)
            && settings::lacks_accumulation(dtype, *accum)
        {
            self.problems.push(Problem::not_yet(
                vec![spot.clone()],
                Some(TABLE.grad_accum_dtype.flag()),
                format!(
                    "a model in {dtype} with gradients accumulated in {accum} is not supported yet: \
                     the native engine accumulates in the model's dtype or in fp32; pass \
                     --grad-accum-dtype {dtype}"
                ),
            ));
        }
        let accum = self.settings.grad_accum_dtype.as_ref().map_or(dtype, |set| set.value);
        request.grad_accum_dtype.get_or_insert(accum);
        request.comm_dtype.get_or_insert(self.settings.comm_dtype.unwrap_or(dtype));
    }

    /// Fills the world size, the microbatch size and the gradient accumulation steps.
    fn fill_batch(&mut self, request: &mut SpecRequest) {
        // A flag with the value 0 is refused elsewhere; here it would be a divisor.
        if request.world_size == Some(0) {
            return;
        }
        let Settings { train, micro, accumulation, batch_is_auto, .. } = self.settings.clone();
        let given = [&train, &micro, &accumulation];
        let spots: Vec<Spot> = given.into_iter().flatten().map(|set| set.spot.clone()).collect();
        let mut asked = Asked {
            train: train.as_ref().map(|set| set.value),
            micro: request.micro_batch_size.or(micro.map(|set| set.value)),
            accumulation: request.gradient_accumulation_steps.or(accumulation.map(|set| set.value)),
        };
        if let Some(Set { value, spot }) = train
            && let Some(winner) = winning_flag(request)
        {
            asked.train = None;
            self.remark(spot, format!("{value} is dropped, since {winner} wins over the file"));
        }
        let world_size = request.world_size.or_else(|| self.infer_world_size(asked, &spots));
        let world_size =
            *request.world_size.get_or_insert(world_size.unwrap_or(DEFAULT_WORLD_SIZE));
        // The framework that fills in an "auto" makes the value fit the others, so nothing is inferred.
        let inferred =
            if batch_is_auto { Err(BatchError::Missing) } else { asked.infer(world_size) };
        match inferred {
            Ok(Batch { micro, accumulation }) => {
                asked = Asked { train: None, micro: Some(micro), accumulation: Some(accumulation) };
            }
            Err(BatchError::Mismatch { train, batch }) => {
                self.mistake(spots, mismatch(train, batch, asked, world_size));
            }
            Err(BatchError::Missing) => {
                let dropped = self.settings.train.is_some();
                let reported = self.problems.iter().any(Problem::is_about_batch);
                if !(dropped || batch_is_auto || reported) {
                    let text = "neither train_batch_size nor train_micro_batch_size_per_gpu is \
                                given, and DeepSpeed needs one of them; add \
                                train_micro_batch_size_per_gpu";
                    self.mistake(Vec::new(), text.to_owned());
                }
            }
        }
        request.micro_batch_size = asked.micro;
        request.gradient_accumulation_steps = asked.accumulation;
    }

    /// The number of ranks that the file was written for, if its batch sizes imply one.
    fn infer_world_size(&mut self, asked: Asked, spots: &[Spot]) -> Option<usize> {
        let world_size = asked.world_size()?;
        let (train, micro, ga) = (asked.train?, asked.micro?, asked.accumulation?);
        let fewer = if world_size > DEFAULT_WORLD_SIZE {
            format!(
                "; --nproc-per-node {DEFAULT_WORLD_SIZE} --ga {ga} runs the file with fewer ranks"
            )
        } else {
            String::new()
        };
        let text = format!(
            "{train} = {micro} × {ga} × {world_size}, so the file was written for {world_size} \
             ranks, and runs with that many{fewer}"
        );
        self.remarks.push(Remark { spots: spots.to_vec(), text });
        Some(world_size)
    }

    fn mistake(&mut self, spots: Vec<Spot>, text: String) {
        self.problems.push(Problem::mistake(spots, text));
    }

    fn remark(&mut self, spot: Spot, text: String) {
        self.remarks.push(Remark { spots: vec![spot], text });
    }

    fn notes(self) -> Vec<Note> {
        let DeepSpeedConfig { file, mut remarks, auto, .. } = self;
        if !auto.is_empty() {
            let text = "\"auto\" is left to the calling framework, so it counts as not set: \
                        zprobe's defaults apply, and flags such as --ga and --dtype change them";
            remarks.push(Remark { spots: auto, text: text.to_owned() });
        }
        remarks.sort_by_key(Remark::place);
        if let Some(more) = remarks.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0) {
            remarks.truncate(MOST_SHOWN);
            remarks.push(Remark { spots: Vec::new(), text: format!("and {more} more notes") });
        }
        remarks.into_iter().map(|remark| Note { file: file.clone(), remark }).collect()
    }
}

/// The flag, with its value, that conflicts with the file's `train_batch_size`; `None` if no flag does.
fn winning_flag(request: &SpecRequest) -> Option<String> {
    let ga = request.gradient_accumulation_steps.map(|ga| format!("--ga {ga}"));
    ga.or_else(|| request.micro_batch_size.map(|micro| format!("--micro-batch-size {micro}")))
}

/// The message that the batch sizes do not multiply to the training batch size.
fn mismatch(train: usize, batch: Batch, asked: Asked, world_size: usize) -> String {
    let inferred = |asked: Option<usize>| if asked.is_none() { " (inferred)" } else { "" };
    let Batch { micro, accumulation } = batch;
    let all_given = asked.micro.is_some() && asked.accumulation.is_some();
    let advice = match asked.world_size() {
        Some(fitting) => format!("pass --nproc-per-node {fitting}, for which it holds,"),
        None if all_given => "no world size fits: change one of the sizes,".to_owned(),
        None => "change one of the sizes or --nproc-per-node,".to_owned(),
    };
    format!(
        "train_batch_size = micro × ga × world does not hold: {train} ≠ {micro}{} × \
         {accumulation}{} × {world_size}; {advice} or pass --ga {} to ignore train_batch_size",
        inferred(asked.micro),
        inferred(asked.accumulation),
        accumulation.max(1),
    )
}
