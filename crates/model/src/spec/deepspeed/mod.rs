//! A user's DeepSpeed file, as it is.
//!
//! [`DeepSpeedConfig::read`] reads a file as DeepSpeed would and compares every key with one table
//! of what DeepSpeed knows and what zprobe does with it; [`DeepSpeedConfig::apply`] fills what the
//! command line left open in a [`SpecRequest`]. Where the file says nothing, DeepSpeed's default
//! counts and not zprobe's, so that the run is the one that the file describes.
//!
//! A file is refused with everything that is wrong with it at once: mistakes, and what zprobe's
//! native engine does not have yet, each with its key path and place. What does not change which
//! gradients are summed is accepted, with a [`Note`] where that may surprise.

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

/// Largest size of a file in bytes. The longest that people write have some ten thousand.
const MAX_BYTES: u64 = 1 << 20;

/// Dtype of a model whose dtype the file leaves to `"auto"`.
const AUTO_DTYPE: Dtype = Dtype::Bf16;

/// A DeepSpeed file that has been read. Problems with running it may depend on flags, so they are
/// reported by [`DeepSpeedConfig::apply`].
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
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or its syntax is wrong.
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

    /// Reads the text of a file; `file` is its name in messages.
    ///
    /// # Errors
    /// When its syntax is wrong.
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

    /// Fills what `request` leaves open: a flag or variable that was given wins over the file.
    /// Returns notes for the file's owner.
    ///
    /// # Errors
    /// All problems with running the file with these flags, at once. The request is then left as it
    /// was.
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
            let text = "no optimizer section, as where one is passed to deepspeed.initialize; \
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

    /// Says what the installed engine decides. What the native one makes of a key does not matter to it.
    fn leave_to_the_engine(&mut self) {
        self.remarks.clear();
        for Problem { remark, kind } in &self.problems {
            match kind {
                Kind::Unknown { note } => {
                    Remark::add(&mut self.remarks, remark.spots.clone(), note);
                }
                Kind::NotYet { unless } if *unless == Some(TABLE.optimizer.flag()) => {
                    let text =
                        "not used: zprobe runs an optimizer of its own in place of the file's";
                    Remark::add(&mut self.remarks, remark.spots.clone(), text);
                }
                Kind::Replaced { by } => {
                    let text = format!("not used: {by} takes its place, and it stays unchecked");
                    Remark::add(&mut self.remarks, remark.spots.clone(), &text);
                }
                _ => {}
            }
        }
    }

    /// Hands the file on to the real DeepSpeed, with the flags of `asked` over it.
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

    /// Fills model dtype, accumulation dtype and communication dtype.
    ///
    /// Unless they are set, the latter two are the model's: `DeepSpeedEngine.get_data_types` and
    /// the property `DeepSpeedEngine.communication_data_type` in `runtime/engine.py`. The property
    /// depends on which of fp16 and bf16 is enabled and not on the buffer that is reduced, and both
    /// reductions cast to it: `DeepSpeedEngine.allreduce_bucket`, through which `BF16_Optimizer`'s
    /// fp32 accumulator goes, and `DeepSpeedZeroOptimizer`'s IPG buckets, which get it as a
    /// constructor argument. So a bf16 model with fp32 accumulation crosses ranks in bf16. (With
    /// sequence parallelism, `seq_parallel_communication_data_type` takes its place.)
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
                    "accumulating the gradients of a model in {dtype} in {accum} is not there yet: \
                     the native engine adds them up in their own dtype or in fp32; pass \
                     --grad-accum-dtype {dtype}"
                ),
            ));
        }
        let accum = self.settings.grad_accum_dtype.as_ref().map_or(dtype, |set| set.value);
        request.grad_accum_dtype.get_or_insert(accum);
        request.comm_dtype.get_or_insert(self.settings.comm_dtype.unwrap_or(dtype));
    }

    /// Fills world size, microbatch size and gradient accumulation.
    fn fill_batch(&mut self, request: &mut SpecRequest) {
        // A flag of 0 is refused elsewhere; here it would be a divisor.
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
        // The framework that fills in an "auto" makes it fit the others; nothing is inferred.
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
            format!("; --nproc-per-node {DEFAULT_WORLD_SIZE} --ga {ga} runs it with fewer")
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

/// The flag, with its value, that conflicts with the file's `train_batch_size`.
fn winning_flag(request: &SpecRequest) -> Option<String> {
    let ga = request.gradient_accumulation_steps.map(|ga| format!("--ga {ga}"));
    ga.or_else(|| request.micro_batch_size.map(|micro| format!("--micro-batch-size {micro}")))
}

/// Text of the equation that does not hold.
fn mismatch(train: usize, batch: Batch, asked: Asked, world_size: usize) -> String {
    let inferred = |asked: Option<usize>| if asked.is_none() { " (inferred)" } else { "" };
    let Batch { micro, accumulation } = batch;
    let all_given = asked.micro.is_some() && asked.accumulation.is_some();
    let advice = match asked.world_size() {
        Some(fitting) => format!("pass --nproc-per-node {fitting}, for which it does,"),
        None if all_given => "no world size fits: change one of them,".to_owned(),
        None => "change one of them or --nproc-per-node,".to_owned(),
    };
    format!(
        "train_batch_size = micro × ga × world does not hold: {train} ≠ {micro}{} × \
         {accumulation}{} × {world_size}; {advice} or pass --ga {} to leave train_batch_size aside",
        inferred(asked.micro),
        inferred(asked.accumulation),
        accumulation.max(1),
    )
}
