//! Ports for servers: each is given to one process at a time, and once.
//!
//! Clients of a server that was killed go on calling its port, and a test waits until they find no server there. So no other may listen
//! there meanwhile: neither of this process, nor of another test program that runs beside it.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Below those that the system gives away.
const FIRST: u32 = 10_000;
const BLOCKS: u32 = 110;
const BLOCK: u32 = 200;

/// The blocks that are this process's until it ends.
static OURS: Mutex<Ours> = Mutex::new(Ours {
    locks: Vec::new(),
    next: 0,
    end: 0,
});

struct Ours {
    locks: Vec<TcpListener>,
    next: u32,
    end: u32,
}

/// A free port, which no server is given again while this process lives.
pub(super) fn free_port() -> u16 {
    let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if ours.next == ours.end {
            ours.take_block();
        }
        let port = port(ours.next);
        ours.next += 1;
        // Something else than these tests may listen there.
        if listen(port).is_some() {
            return port;
        }
    }
}

impl Ours {
    /// The first port of a block is its lock: the system gives it to one process, and frees it when that ends, however it ends.
    fn take_block(&mut self) {
        // Each process begins elsewhere: clients may still call the ports of one that has just ended.
        let begin = std::process::id().wrapping_mul(97);
        let (first, lock) = (0..BLOCKS)
            .map(|further| FIRST + begin.wrapping_add(further) % BLOCKS * BLOCK)
            .find_map(|first| Some((first, listen(port(first))?)))
            .unwrap_or_else(|| panic!("no block of loopback ports from {FIRST} on is free"));
        self.locks.push(lock);
        (self.next, self.end) = (first + 1, first + BLOCK);
    }
}

fn listen(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()
}

fn port(number: u32) -> u16 {
    u16::try_from(number).expect("ports are below 65,536")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_used_up_is_kept_and_no_port_is_given_twice() {
        let mut given: Vec<u16> = (0..3 * BLOCK).map(|_| free_port()).collect();
        let held = |port: &u16| {
            OURS.lock()
                .unwrap()
                .locks
                .iter()
                .any(|lock| lock.local_addr().unwrap().port() == *port)
        };
        assert!(!given.iter().any(held), "a lock is no port for a server");
        assert!(OURS.lock().unwrap().locks.len() >= 3);
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), 3 * BLOCK as usize);
    }
}
