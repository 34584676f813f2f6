//! Collectives over Gloo, through c10d. Gloo handles only host memory, so tensors on a GPU are copied to the host.

use std::mem::ManuallyDrop;
use std::time::Duration;

use anyhow::Result;
use tch::{Device, Tensor};

use super::{CollectiveBackend, Operation};
use crate::shim::c10d::{self, Store};

/// A Gloo process group.
pub struct Gloo {
    /// The group, which is never dropped: Gloo's destructor waits up to 10 ms for each connection's event loop, and the
    /// group lives as long as the process anyway.
    group: ManuallyDrop<c10d::GlooBackend>,
    /// True if tensors are on a GPU: they are copied to the host before a collective, and the results are copied back.
    stages: bool,
}

/// A Gloo operation that was started.
struct GlooOperation {
    work: c10d::BackendWork,
    /// The target and the source for the copy of the result; `None` if the result is already in place.
    result: Option<(Tensor, Tensor)>,
}

impl Gloo {
    /// Connects to all other ranks over a network interface. The tensors of the collectives are on `device`.
    pub fn new(
        store: &Store,
        rank: usize,
        world_size: usize,
        interface: &str,
        timeout: Duration,
        device: Device,
    ) -> Result<Self> {
        let group = c10d::GlooBackend::new(store, rank, world_size, interface, timeout)?;
        let group = ManuallyDrop::new(group);
        Ok(Self { group, stages: device != Device::Cpu })
    }

    /// A tensor on the host with the content of `tensor`, for Gloo.
    fn on_host(&self, tensor: &Tensor) -> Result<Tensor> {
        if !self.stages {
            return Ok(tensor.shallow_clone());
        }
        // The copy waits until the tensor is computed.
        Ok(tensor.f_to_device_(Device::Cpu, tensor.kind(), false, true)?)
    }

    fn started(&self, work: c10d::BackendWork, to: &Tensor, from: Tensor) -> Box<dyn Operation> {
        let result = self.stages.then(|| (to.shallow_clone(), from));
        Box::new(GlooOperation { work, result })
    }
}

impl CollectiveBackend for Gloo {
    fn all_reduce_sum(&self, tensor: &Tensor) -> Result<Box<dyn Operation>> {
        let host = self.on_host(tensor)?;
        Ok(self.started(self.group.all_reduce_sum(&host)?, tensor, host))
    }

    fn reduce_sum(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Operation>> {
        let host = self.on_host(tensor)?;
        Ok(self.started(self.group.reduce_sum(&host, root)?, tensor, host))
    }

    fn reduce_scatter_sum(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Operation>> {
        let (to, from) = (self.on_host(output)?, self.on_host(input)?);
        Ok(self.started(self.group.reduce_scatter_sum(&to, &from)?, output, to))
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Operation>> {
        let (to, from) = (self.on_host(output)?, self.on_host(input)?);
        Ok(self.started(self.group.all_gather(&to, &from)?, output, to))
    }
}

impl Operation for GlooOperation {
    fn wait(self: Box<Self>) -> Result<()> {
        self.work.wait()?;
        match self.result {
            Some((mut to, from)) => Ok(to.f_copy_(&from)?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The results of each collective on two ranks, which have the inputs (1, 2) and (10, 20).
    fn outcomes(stages: bool) -> Vec<Vec<f32>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut listener = Some(listener.into());
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let listener = listener.take();
                thread::spawn(move || {
                    let host = Ipv4Addr::LOCALHOST.to_string();
                    let store = Store::join(&host, port, listener, TIMEOUT).unwrap();
                    let group = c10d::GlooBackend::new(&store, rank, 2, "lo", TIMEOUT).unwrap();
                    let gloo = Gloo { group: ManuallyDrop::new(group), stages };
                    collectives(&gloo, [1.0, 10.0][rank])
                })
            })
            .collect();
        ranks.into_iter().flat_map(|rank| rank.join().unwrap()).collect()
    }

    fn collectives(gloo: &Gloo, unit: f32) -> Vec<Vec<f32>> {
        let own = || Tensor::from_slice(&[unit, 2.0 * unit]);
        let zeros = |len: i64| Tensor::zeros([len], (tch::Kind::Float, Device::Cpu));
        let (summed, reduced, scattered, gathered) = (own(), own(), zeros(1), zeros(4));
        gloo.all_reduce_sum(&summed).unwrap().wait().unwrap();
        gloo.reduce_sum(&reduced, 1).unwrap().wait().unwrap();
        gloo.reduce_scatter_sum(&scattered, &own()).unwrap().wait().unwrap();
        gloo.all_gather(&gathered, &own()).unwrap().wait().unwrap();
        let mut results = vec![summed, scattered, gathered];
        // The content of `reduced` is unspecified on the other rank.
        results.extend((unit == 10.0).then_some(reduced));
        results.iter().map(|tensor| tensor.try_into().unwrap()).collect()
    }

    #[test]
    fn what_is_staged_comes_back_as_if_it_had_been_on_the_host() {
        let direct = outcomes(false);
        let expected = [
            vec![11.0, 22.0],
            vec![11.0],
            vec![1.0, 2.0, 10.0, 20.0],
            vec![11.0, 22.0],
            vec![22.0],
            vec![1.0, 2.0, 10.0, 20.0],
            vec![11.0, 22.0],
        ];
        assert_eq!(direct, expected);
        assert_eq!(outcomes(true), direct);
    }
}
