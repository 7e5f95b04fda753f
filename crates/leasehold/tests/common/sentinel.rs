//! A Sentinel that watches nothing: a Redis or Valkey server by another name, which keeps no data.

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use leasehold_testkit::{Flavor, wait_until};

use super::SOON;

/// A running Sentinel. Dropping it kills it.
pub struct Sentinel {
    child: Child,
    port: u16,
    /// Its configuration, which it writes itself anew.
    file: PathBuf,
}

impl Sentinel {
    /// Starts one and blocks until it answers.
    pub fn start(flavor: Flavor) -> Sentinel {
        // No port that the system gives away: it might give the port to somebody who connects before Sentinel takes it.
        let first = 4_000 + u16::try_from(std::process::id() % 4_000).unwrap();
        let mut ports = first..9_000;
        let port = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
        let port = port.expect("a free port");
        let name = format!("leasehold-sentinel-{port}-{}.conf", std::process::id());
        let file = std::env::temp_dir().join(name);
        fs::write(&file, format!("port {port}\nbind 127.0.0.1\n")).unwrap();
        let child = Command::new(flavor.binary().unwrap())
            .arg(&file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let sentinel = Sentinel { child, port, file };
        let is_up = || {
            redis::Client::open(sentinel.url())
                .unwrap()
                .get_connection()
                .is_ok()
        };
        wait_until(SOON, "the Sentinel answers", is_up);
        sentinel
    }

    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.addr())
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.file);
    }
}
