//! Assembles the engine of one rank from its parts.
//!
//! Only this module injects faults into the engine: each function of [`crate::faults`] takes a sound part and returns
//! the part for the engine, with or without a fault.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Result, bail};
use tch::{Device, Tensor};
use zprobe_model::spec::{Dataflow, Plan, RunSpec};

use crate::collective::Collectives;
use crate::engine::Engine;
use crate::engine::accumulator::Accumulator;
use crate::engine::clip::MaxNorm;
use crate::engine::context::Context;
use crate::engine::flow::GradientFlow;
use crate::engine::groups::EngineGroups;
use crate::engine::hooks::{Hook, Hooks};
use crate::engine::inner::ParameterGroups;
use crate::engine::ipg::IpgBuckets;
use crate::engine::optimizer::{ShardedOptimizer, StepParts, master_weights};
use crate::engine::parameters::Parameters;
use crate::engine::partitioning::Partitioning;
use crate::engine::reduction::Reducer;
use crate::engine::scaler::LossScaler;
use crate::engine::settings::NativeSettings;
use crate::faults::{self, Injected};
use crate::model;
use crate::recorder::EventRecorder;

/// Builds the engine of `rank`, which computes on `device` and communicates through `ranks`.
pub fn engine(
    spec: RunSpec,
    rank: usize,
    device: Device,
    ranks: Rc<dyn Collectives>,
    recorder: Rc<EventRecorder>,
) -> Result<Engine> {
    let fault = faults::of(&spec, rank);
    let plan = Plan::new(&spec);
    let partitioning = Partitioning::new(&spec, &plan);
    let settings = faults::settings(fault, NativeSettings::new(&spec, rank));
    let groups = faults::groups(fault, &spec, rank, EngineGroups::new(ranks, &partitioning));
    let context = Context { spec, plan, partitioning, settings, device, groups, recorder };
    let context = Rc::new(context);
    let model = model::build(&context.spec, &context.plan, rank, device)?;

    // The hooks stay attached, because `Parameters::new` replaces only the content of the parameters.
    let flow = Rc::new(RefCell::new(flow(fault, &context, model.parameters())?));
    let hooks = (context.spec.dataflow() == Some(Dataflow::IpgBucket))
        .then(|| Hooks::attach(&flow, model.parameters(), faults::hook(fault, Hook::TO_THE_FLOW)));

    let parameters = Parameters::new(Rc::clone(&context), model.parameters())?;
    let master = master_weights(&context, parameters.own())?;
    let scaler = LossScaler::of(&context.spec);
    let clip = MaxNorm(context.spec.gradient_clipping);
    let update = ParameterGroups::new(Rc::clone(&context), &master)?;
    let parts = StepParts {
        scaler: scaler.map(|scaler| faults::scaler(fault, scaler)),
        clip: faults::clip(fault, clip),
        update: faults::update(fault, update),
    };
    Ok(Engine {
        optimizer: ShardedOptimizer::new(Rc::clone(&context), master, parts),
        parameters: faults::weights(fault, parameters, model.parameters()),
        flow,
        hooks: hooks.transpose()?,
        model,
        context,
    })
}

/// Builds the gradient flow that the run's specification names, with or without a fault.
fn flow(
    fault: Injected,
    context: &Rc<Context>,
    params: &[Tensor],
) -> Result<Box<dyn GradientFlow>> {
    match context.spec.dataflow() {
        Some(Dataflow::Accumulator) => {
            let flow = Accumulator::new(Rc::clone(context), params)?;
            faults::accumulator(fault, context, params, flow)
        }
        Some(Dataflow::IpgBucket) => {
            let reduction = Reducer::new(Rc::clone(context))?;
            let reduction = faults::reduction(fault, context, reduction)?;
            let flow = IpgBuckets::new(Rc::clone(context), params, reduction)?;
            Ok(faults::ipg(fault, context, params, flow))
        }
        None => bail!("the run specification names no dataflow: it is not for the native engine"),
    }
}
