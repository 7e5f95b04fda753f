//! A network between a client and a server: a port on loopback from which everything arrives later, each way.
//!
//! The test kit's proxy counts in tokio's milliseconds, and so delays a millisecond by two. Here threads sleep, to some 60 µs.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Where the server is so far away. Lasts as long as this process.
pub(crate) fn away(server: SocketAddr, each_way: Duration) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let here = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("a connection");
            let server = TcpStream::connect(server).expect("our own server takes us");
            carry(&client, &server, each_way);
            carry(&server, &client, each_way);
        }
    });
    here
}

/// Carries what one says to the other, until it has said all.
fn carry(from: &TcpStream, to: &TcpStream, later: Duration) {
    let (mut from, mut to) = (clone(from), clone(to));
    let (sent, on_its_way) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let due = Instant::now() + later;
            if sent.send((due, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in on_its_way {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        // The other end may have gone first.
        let _ = to.shutdown(Shutdown::Write);
    });
}

fn clone(stream: &TcpStream) -> TcpStream {
    stream.set_nodelay(true).expect("a socket");
    stream.try_clone().expect("a socket")
}
