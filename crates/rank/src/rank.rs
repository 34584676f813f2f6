//! Runs one rank, from the rendezvous with the other ranks to the rank's last event.

use std::collections::BTreeMap;
use std::fs::File;
use std::rc::Rc;

use anyhow::{Context as _, Error, Result};
use zprobe_model::trace::{Event, contract};

use crate::collective::{Collectives, Communicator, Rendezvous};
use crate::environment::RankEnvironment;
use crate::recorder::EventRecorder;
use crate::{assembly, complain, cuda, shim};

/// Runs `rank` and returns the exit code of its process.
pub fn main(rank: usize, channel: Option<File>, environment: RankEnvironment) -> i32 {
    let Some(channel) = channel else {
        return complain(&Error::msg(format!("rank {rank} was given no event channel")));
    };
    let recorder = Rc::new(EventRecorder::new(environment.run.clone(), Some(rank), channel));
    match run(rank, &recorder, environment) {
        Ok(()) => 0,
        Err(err) => {
            // The error goes to the trace as an event, and through standard error to the log, in case the channel is
            // closed.
            let _ = recorder.emit(Event::Failed { message: format!("{err:#}") });
            complain(&err)
        }
    }
}

fn run(rank: usize, recorder: &Rc<EventRecorder>, environment: RankEnvironment) -> Result<()> {
    let spec = environment.spec;
    // Each rank has one thread, because the ranks share the machine, and because sums must not depend on a thread
    // count.
    tch::set_num_threads(1);
    if spec.poison_memory {
        shim::memory::poison()?;
    }
    let versions = BTreeMap::from([
        ("torch".to_owned(), shim::torch_version()),
        ("zprobe-rank".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    let local_rank = environment.first_local_rank + rank - environment.first_rank;
    let device = cuda::device_of(&spec, local_rank)?;
    recorder.emit(Event::RankReady { versions, device: cuda::name(device) })?;

    let communicator = Communicator::join(
        Rendezvous {
            host: environment.store_host,
            port: environment.store_port,
            listener: environment.store_listener.filter(|_| rank == 0),
            interface: environment.interface,
        },
        &spec,
        rank,
        device,
        contract::patience(&spec),
        Rc::clone(recorder),
    )
    .context("cannot join the other ranks")?;

    let communicator = Rc::new(communicator);
    let ranks: Rc<dyn Collectives> = Rc::<Communicator>::clone(&communicator);
    assembly::engine(spec, rank, device, ranks, Rc::clone(recorder))?.run()?;
    communicator.leave()?;
    recorder.emit(Event::Finished)
}
