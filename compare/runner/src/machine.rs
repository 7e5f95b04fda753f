//! The cores that we may use, the clock that all processes share, and what the reader is told of the machine.

use std::{fs, process::Command};

use rustix::time::{ClockId, clock_gettime};

/// A core for the servers and one for the libraries, where there are two: unpinned, the scheduler's luck decides.
#[derive(Debug)]
pub(crate) struct Cores(Option<[u32; 2]>);

impl Cores {
    pub(crate) fn find() -> Cores {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let cores = match listed(allowed.unwrap_or_default())[..] {
            [server, clients, ..] => Some([server, clients]),
            _ => None,
        };
        let pins = Command::new("taskset").arg("--version").output().is_ok();
        Cores(cores.filter(|_| pins))
    }

    /// Words in front of the server's.
    pub(crate) fn server(&self) -> String {
        self.0
            .map_or(String::new(), |[server, _]| format!("taskset -c {server}"))
    }

    pub(crate) fn on_clients(&self, words: &[String]) -> Command {
        let Some([_, clients]) = self.0 else {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            return command;
        };
        let mut command = Command::new("taskset");
        command.args(["-c", &clients.to_string()]).args(words);
        command
    }

    pub(crate) fn told(&self) -> &'static str {
        match self.0 {
            Some(_) => "all servers on one core, all libraries on another",
            None => "NOT pinned to cores",
        }
    }
}

/// `0-2,5` is 0, 1, 2 and 5.
fn listed(cores: &str) -> Vec<u32> {
    let ranges = cores.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// Microseconds of `CLOCK_MONOTONIC`.
pub(crate) fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

pub(crate) fn date() -> String {
    let date = Command::new("date").args(["-u", "+%F"]).output();
    date.map_or("?".into(), |date| {
        String::from_utf8_lossy(&date.stdout).trim().into()
    })
}

pub(crate) fn processor() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let name = name.map_or("?", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name}, {cores} cores")
}

#[cfg(test)]
mod tests {
    #[test]
    fn cores_are_listed_by_ranges_and_alone() {
        assert_eq!(super::listed("\t0-2,5\n"), [0, 1, 2, 5]);
        assert!(super::listed("").is_empty());
    }
}
