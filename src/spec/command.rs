//! From a specification back to the command that asks for it.
//!
//! [`RunSpec::command`] is the inverse of parsing: whatever it returns resolves to the same
//! specification, or it returns nothing. It says no more than it has to, but for the engine, the
//! stage and the accumulation steps, which people look for.

use bytesize::ByteSize;
use serde_json::{Map, Value, json};

use super::deepspeed::DeepSpeedConfig;
use super::{Dataflow, Dtype, Engine, LossScale, Optimizer, RunSpec, SpecRequest};

/// What to type for a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// What follows `zprobe run`, word by word.
    pub arguments: Vec<String>,
    /// Content of the file that `--deepspeed-config` names, where flags alone cannot say it.
    pub deepspeed_config: Option<Value>,
}

impl Command {
    /// The whole as one line for a shell.
    pub fn line(&self) -> String {
        let words = ["zprobe", "run"].into_iter().chain(self.arguments.iter().map(String::as_str));
        shlex::try_join(words).unwrap_or_default()
    }
}

/// A flag of `zprobe run` that holds one setting of a request.
pub struct Flag {
    /// With its dashes.
    pub name: &'static str,
    /// Its value on the command line; none where it is not set, or cannot be said there.
    pub text: fn(&SpecRequest) -> Option<String>,
    /// Leaves the setting open.
    pub clear: fn(&mut SpecRequest),
}

impl Flag {
    /// Every one, in the order in which they are typed.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        ALWAYS_SAID.iter().chain(FLAGS)
    }
}

macro_rules! flag {
    ($name:literal, $field:ident) => {
        Flag {
            name: $name,
            text: |request| request.$field.as_ref().map(ToString::to_string),
            clear: |request| request.$field = None,
        }
    };
}

/// Flags that are said even where they are the default.
const ALWAYS_SAID: &[Flag] = &[
    flag!("--engine", engine),
    flag!("--stage", stage),
    flag!("--ga", gradient_accumulation_steps),
];

/// The other flags. What decides over a default stands behind what it decides over.
const FLAGS: &[Flag] = &[
    flag!("--nproc-per-node", world_size),
    flag!("--dtype", dtype),
    flag!("--grad-accum-dtype", grad_accum_dtype),
    flag!("--comm-dtype", comm_dtype),
    flag!("--reduce-bucket-size", reduce_bucket_size),
    flag!("--allgather-bucket-size", allgather_bucket_size),
    flag!("--parameter-groups", parameter_groups),
    flag!("--overlap-comm", overlap_comm),
    flag!("--contiguous-gradients", contiguous_gradients),
    flag!("--reduce-scatter", reduce_scatter),
    flag!("--immediate-grad-update", immediate_grad_update),
    flag!("--offload", offload),
    flag!("--dataflow", dataflow),
    flag!("--gradient-clipping", gradient_clipping),
    Flag {
        name: "--loss-scale",
        text: |request| request.loss_scale.and_then(loss_scale),
        clear: |request| request.loss_scale = None,
    },
    flag!("--bucket-cap-mb", bucket_cap_mb),
    flag!("--find-unused-parameters", find_unused_parameters),
    flag!("--static-graph", static_graph),
    flag!("--gradient-as-bucket-view", gradient_as_bucket_view),
    flag!("--comm-hook", comm_hook),
    flag!("--reshard-after-forward", reshard_after_forward),
    flag!("--observe", observe),
    flag!("--poison-memory", poison_memory),
    Flag {
        name: "--optimizer",
        text: |request| request.optimizer.and_then(optimizer),
        clear: |request| request.optimizer = None,
    },
    flag!("--model", model),
    flag!("--parameters", parameters),
    Flag {
        name: "--shape",
        text: |request| {
            let names: Vec<&str> = request.shapes.iter().map(|shape| shape.name()).collect();
            (!names.is_empty()).then(|| names.join(","))
        },
        clear: |request| request.shapes.clear(),
    },
    flag!("--micro-batch-size", micro_batch_size),
    flag!("--steps", steps),
    flag!("--seed", seed),
    flag!("--inject", inject),
    flag!("--timeout", timeout_s),
    Flag {
        name: "--trace-budget",
        // In bytes: with a unit it would be rounded.
        text: |request| request.trace_budget.map(|budget| budget.0.to_string()),
        clear: |request| request.trace_budget = None,
    },
];

/// `--loss-scale` has a number, and one dynamic scale.
fn loss_scale(scale: LossScale) -> Option<String> {
    match scale {
        LossScale::DEFAULT => Some("dynamic".to_owned()),
        LossScale::Static { scale } => Some(scale.to_string()),
        LossScale::Dynamic { .. } => None,
    }
}

/// `--optimizer` has two, with fixed settings.
fn optimizer(optimizer: Optimizer) -> Option<String> {
    match optimizer {
        Optimizer::EXACT_SGD => Some("sgd".to_owned()),
        Optimizer::ADAMW => Some("adamw".to_owned()),
        _ => None,
    }
}

impl SpecRequest {
    /// What follows `zprobe run` to ask for this, as far as flags can say it.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        for flag in Flag::all() {
            say(flag, self, &mut arguments);
        }
        arguments
    }

    /// The same request without what flags cannot say.
    #[must_use]
    pub fn sayable(&self) -> Self {
        let mut request = Self { deepspeed_config: None, ..self.clone() };
        for flag in Flag::all().filter(|flag| (flag.text)(self).is_none()) {
            (flag.clear)(&mut request);
        }
        request
    }
}

impl RunSpec {
    /// The shortest command that resolves to this specification; where that takes a DeepSpeed file,
    /// it is called `file`. None where no command does: a file that leaves dtypes to `"auto"` stands
    /// in the specification as it was passed on, which says less than the file did.
    pub fn command(&self, file: &str) -> Option<Command> {
        let flags = (self.as_flags(), None);
        let with_file = self.as_file();
        let (request, config) = [Some(flags), with_file]
            .into_iter()
            .flatten()
            .find(|(request, config)| resolves(request, config.as_ref(), self))?;
        let request = shortened(request, config.as_ref(), self);
        let mut arguments = Vec::new();
        for flag in ALWAYS_SAID {
            say(flag, &request, &mut arguments);
        }
        if config.is_some() {
            arguments.extend(["--deepspeed-config".to_owned(), file.to_owned()]);
        }
        for flag in FLAGS {
            say(flag, &request, &mut arguments);
        }
        Some(Command { arguments, deepspeed_config: config })
    }

    /// Everything as a flag, as far as there is one that this engine takes.
    fn as_flags(&self) -> SpecRequest {
        let (native, deepspeed) = (self.engine == Engine::Native, self.engine == Engine::DeepSpeed);
        let zero = native || deepspeed;
        // DeepSpeed is told of these by the configuration, where a flag leaves a trace.
        let config = self.deepspeed_config.as_ref();
        let configured = |path| config.is_some_and(|config| config.pointer(path).is_some());
        SpecRequest {
            stage: zero.then_some(self.stage),
            dtype: Some(self.dtype),
            grad_accum_dtype: zero.then_some(self.grad_accum_dtype),
            comm_dtype: self.comm_dtype.filter(|_| self.engine != Engine::Ddp),
            dataflow: self.dataflow,
            // The accumulator has no bucket, and is given none.
            reduce_bucket_size: (zero && self.dataflow != Some(Dataflow::Accumulator))
                .then_some(self.reduce_bucket_size),
            allgather_bucket_size: self.allgather_bucket_size,
            parameter_groups: self.parameter_groups,
            offload: (native || configured("/zero_optimization/offload_optimizer"))
                .then_some(self.offload),
            overlap_comm: self.overlap_comm,
            contiguous_gradients: self.contiguous_gradients,
            reduce_scatter: self.reduce_scatter,
            immediate_grad_update: self.immediate_grad_update,
            gradient_clipping: Some(self.gradient_clipping),
            loss_scale: (native || configured("/fp16"))
                .then_some(self.loss_scale)
                .filter(|scale| loss_scale(*scale).is_some()),
            bucket_cap_mb: self.ddp.map(|ddp| ddp.bucket_cap_mb),
            find_unused_parameters: self.ddp.map(|ddp| ddp.find_unused_parameters),
            static_graph: self.ddp.map(|ddp| ddp.static_graph),
            gradient_as_bucket_view: self.ddp.map(|ddp| ddp.gradient_as_bucket_view),
            comm_hook: self.ddp.map(|ddp| ddp.comm_hook),
            reshard_after_forward: self.fsdp2.map(|fsdp2| fsdp2.reshard_after_forward),
            inject: self.inject,
            ..self.beside_the_engine()
        }
    }

    /// What no DeepSpeed file says.
    fn beside_the_engine(&self) -> SpecRequest {
        SpecRequest {
            engine: Some(self.engine),
            world_size: Some(self.world_size),
            gradient_accumulation_steps: Some(self.gradient_accumulation_steps),
            steps: Some(self.steps),
            observe: Some(self.observe),
            poison_memory: Some(self.poison_memory),
            shapes: self.shapes.clone(),
            model: Some(self.model),
            parameters: self.parameters,
            micro_batch_size: Some(self.micro_batch_size),
            optimizer: Some(self.optimizer).filter(|it| optimizer(*it).is_some()),
            seed: Some(self.seed),
            timeout_s: Some(self.timeout_s),
            trace_budget: Some(ByteSize(self.recording.budget)),
            ..SpecRequest::default()
        }
    }

    /// A DeepSpeed file, and the flags that go with it; none for engines that read no such file.
    fn as_file(&self) -> Option<(SpecRequest, Option<Value>)> {
        let (request, mut config) = match (self.engine, &self.deepspeed_config) {
            (Engine::DeepSpeed, Some(Value::Object(passed_on))) => {
                // What was asked for by flag stands in the specification and in the file.
                let request = SpecRequest {
                    overlap_comm: self.overlap_comm,
                    contiguous_gradients: self.contiguous_gradients,
                    reduce_scatter: self.reduce_scatter,
                    immediate_grad_update: self.immediate_grad_update,
                    ..self.beside_the_engine()
                };
                (request, passed_on.clone())
            }
            (Engine::Native, _) => (self.as_flags(), self.native_file()),
            _ => return None,
        };
        if request.optimizer.is_none() {
            config.insert("optimizer".to_owned(), section(self.optimizer));
        }
        Some((request, Some(Value::Object(config))))
    }

    /// What the native engine's flags cannot say.
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

/// A DeepSpeed file's section `optimizer`.
fn section(optimizer: Optimizer) -> Value {
    match optimizer {
        Optimizer::Sgd { lr } => json!({"type": "SGD", "params": {"lr": lr}}),
        Optimizer::Adamw { lr, betas, eps, weight_decay } => json!({
            "type": "AdamW",
            "params": {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
        }),
    }
}

/// Whether this request, over this DeepSpeed file, is that specification.
fn resolves(request: &SpecRequest, config: Option<&Value>, spec: &RunSpec) -> bool {
    let mut request = request.clone();
    if let Some(config) = config {
        let read = DeepSpeedConfig::parse(&config.to_string(), "");
        if !read.is_ok_and(|file| file.apply(&mut request).is_ok()) {
            return false;
        }
    }
    request.resolve().is_ok_and(|resolved| resolved == *spec)
}

/// The request without what goes without saying.
fn shortened(mut request: SpecRequest, config: Option<&Value>, spec: &RunSpec) -> SpecRequest {
    for flag in FLAGS {
        let mut shorter = request.clone();
        (flag.clear)(&mut shorter);
        if resolves(&shorter, config, spec) {
            request = shorter;
        }
    }
    request
}

fn say(flag: &Flag, request: &SpecRequest, arguments: &mut Vec<String>) {
    if let Some(text) = (flag.text)(request) {
        arguments.extend([flag.name.to_owned(), text]);
    }
}
