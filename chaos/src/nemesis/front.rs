//! The same address of a server for all workers, and a network of its own for each worker.
//!
//! The clients of a quorum choose the coordinator of a name by the addresses of its servers, so all must be given the same. The front accepts
//! what comes to that address, finds out by `/proc` which worker it comes from, and hands it to the proxy of that worker.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use leasehold_testkit::Proxy;

/// The process of each worker; `None`: it is dead.
pub(crate) type Pids = Arc<Mutex<Vec<Option<u32>>>>;

pub(crate) struct Front {
    addr: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl Front {
    /// `networks`: of each worker the proxy that stands before this server.
    pub(crate) fn start(pids: Pids, networks: Vec<Arc<Proxy>>) -> io::Result<Front> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                // A connection whose process died meanwhile is closed.
                if let Some(worker) = worker(&client, &pids) {
                    networks[worker].carry(client);
                }
            }
        });
        Ok(Front { addr, is_over })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
    }
}

/// Which worker has the other end.
fn worker(client: &TcpStream, pids: &Pids) -> Option<usize> {
    let ends = [client.peer_addr().ok()?, client.local_addr().ok()?];
    let ends = ends.map(|end| format!(":{:04X}", end.port()));
    let inode = fs::read_to_string("/proc/net/tcp")
        .ok()?
        .lines()
        .find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_its = fields.get(1)?.ends_with(&ends[0]) && fields.get(2)?.ends_with(&ends[1]);
            is_its.then(|| fields.get(9).map(ToString::to_string))?
        })?;
    let socket = format!("socket:[{inode}]");
    let has_it = |pid: &Option<u32>| {
        let open = pid.and_then(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok());
        open.into_iter()
            .flatten()
            .filter_map(Result::ok)
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(|file| file.as_os_str() == socket.as_str())
    };
    let pids = pids.lock().unwrap_or_else(PoisonError::into_inner);
    pids.iter().position(has_it)
}
