//! A server on a free loopback port, without persistence, and what it tells of its work.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{Failure, machine::Cores};

#[derive(Debug)]
pub(crate) struct Server {
    /// A shell that ends the server by its id when its own input ends. This happens even if the runner is killed.
    keeper: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(cores: &Cores) -> Result<Server, Failure> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        // Signals from the terminal reach the whole group, and would end the shell before the server.
        let script = format!(
            "trap '' INT TERM HUP
             {} redis-server --port {port} --bind 127.0.0.1 --save '' --appendonly no >/dev/null 2>&1 & server=$!
             cat >/dev/null; kill $server 2>/dev/null; wait $server",
            cores.server()
        );
        let keeper = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .spawn()?;
        let server = Server {
            keeper,
            address: format!("127.0.0.1:{port}"),
        };
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(&server.address).is_err() {
            if Instant::now() > end {
                return Err("redis-server is not there within 10 s: is it installed?".into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// A field of INFO.
    pub(crate) fn info(&self, field: &str) -> Result<String, Failure> {
        let mut connection = TcpStream::connect(&self.address)?;
        connection.write_all(b"INFO\r\nQUIT\r\n")?;
        let mut text = String::new();
        connection.read_to_string(&mut text)?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value
            .ok_or_else(|| format!("INFO has no {field}"))?
            .to_owned())
    }

    /// CPU that it has used so far, in µs.
    pub(crate) fn cpu(&self) -> Result<f64, Failure> {
        let seconds = |field| Ok::<f64, Failure>(self.info(field)?.parse()?);
        Ok((seconds("used_cpu_sys")? + seconds("used_cpu_user")?) * 1e6)
    }

    /// Counts from now on what clients send.
    pub(crate) fn watch(&self) -> Result<Watch, Failure> {
        let mut connection = TcpStream::connect(&self.address)?;
        connection.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(connection.try_clone()?);
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line)?;
        let counts = thread::spawn(move || {
            let mut sent = 0;
            loop {
                line.clear();
                match lines.read_until(b'\n', &mut line) {
                    Ok(1..) => sent += u64::from(is_sent(&line)),
                    _ => return sent,
                }
            }
        });
        Ok(Watch { connection, counts })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// INFO counts what scripts call as well, so MONITOR is asked, which slows the server down: only where speed is not measured.
pub(crate) struct Watch {
    connection: TcpStream,
    counts: JoinHandle<u64>,
}

impl Watch {
    pub(crate) fn end(self) -> Result<u64, Failure> {
        // The server has written to the socket all that clients sent before.
        thread::sleep(Duration::from_millis(50));
        self.connection.shutdown(Shutdown::Both)?;
        self.counts
            .join()
            .map_err(|_| "the counting thread has ended".into())
    }
}

/// `+1700000000.000000 [0 127.0.0.1:4000] "evalsha" …`, where a script's own calls have `[0 lua]`.
fn is_sent(line: &[u8]) -> bool {
    let whence = line.split(|byte| *byte == b']').next().unwrap_or_default();
    !whence.ends_with(b" lua")
}

#[cfg(test)]
mod tests {
    use super::is_sent;

    #[test]
    fn what_scripts_call_was_sent_by_no_client() {
        assert!(is_sent(b"+1.0 [0 127.0.0.1:4000] \"get\" \"lua]\"\r\n"));
        assert!(!is_sent(b"+1.0 [0 lua] \"get\" \"a\"\r\n"));
    }
}
