//! Two simulated machines: network namespaces with a link between them.

use std::process::Command;

use nix::unistd::geteuid;

use crate::runs::program;

/// The address of the first machine.
pub const FIRST: &str = "10.213.7.1";

/// Two network namespaces with a link between them.
pub struct Machines {
    names: [String; 2],
}

impl Machines {
    /// Makes the namespaces; `None` if the system has no namespaces, or if the user may not make them.
    pub fn start() -> Option<Self> {
        program("ip")?;
        if !geteuid().is_root() {
            eprintln!("skipped: only root can make network namespaces");
            return None;
        }
        let id = std::process::id() % 10_000;
        let names = [format!("zp{id}a"), format!("zp{id}b")];
        let machines = Self { names };
        let [first, second] = &machines.names;
        if !ip(&["netns", "add", first]) {
            eprintln!("skipped: this system has no network namespaces");
            return None;
        }
        assert!(ip(&["netns", "add", second]));
        assert!(ip(&["link", "add", first, "type", "veth", "peer", "name", second]));
        for (name, address) in machines.names.iter().zip([FIRST, "10.213.7.2"]) {
            assert!(ip(&["link", "set", name, "netns", name]));
            assert!(ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", name]));
            assert!(ip(&["-n", name, "link", "set", name, "up"]));
            assert!(ip(&["-n", name, "link", "set", "lo", "up"]));
        }
        Some(machines)
    }

    /// The words before a command that start it on a machine.
    pub fn on(&self, machine: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.names[machine]]
    }

    /// The name of the interface that leads to the other machine.
    pub fn interface(&self, machine: usize) -> &str {
        &self.names[machine]
    }

    /// Cuts the link between the machines.
    pub fn cut(&self) {
        assert!(ip(&["-n", &self.names[0], "link", "set", &self.names[0], "down"]));
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // The link disappears with the namespaces at its ends.
        for name in &self.names {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).output().unwrap().status.success()
}
