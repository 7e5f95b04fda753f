//! Carries bytes between a client and the server, as the faults allow.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{SetOnce, mpsc, oneshot};
use tokio::time::Instant;

use super::Way;
use super::faults::Faults;
use super::links::{End, Link, Parcel, Shared};
use super::pending::Pending;
use super::requests::Requests;

pub(super) fn run(
    listener: std::net::TcpListener,
    handed: mpsc::UnboundedReceiver<std::net::TcpStream>,
    shared: &Arc<Shared>,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .expect("a runtime for the proxy");
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).expect("a listener for the proxy");
        tokio::select! {
            // An error says that the sender was dropped, which is how it says stop.
            _ = stopped => {}
            () = accept(&listener, handed, shared) => {}
        }
    });
}

pub(super) async fn accept(
    listener: &TcpListener,
    mut handed: mpsc::UnboundedReceiver<std::net::TcpStream>,
    shared: &Arc<Shared>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted.map(|(client, _)| client),
            Some(client) = handed.recv() => taken(client),
        };
        let client = match accepted {
            Ok(client) => client,
            Err(error) => {
                eprintln!("leasehold-testkit: the proxy could not accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        if shared.faults.borrow().refuse {
            let _ = client.set_zero_linger();
            continue;
        }
        let _ = client.set_nodelay(true);
        let link = Arc::new(Link::default());
        let id = shared.accepted.fetch_add(1, Ordering::SeqCst);
        shared.links().insert(id, Arc::clone(&link));
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            carry(client, &shared, &link).await;
            // After the sockets are closed, which is what a control waits for.
            shared.links().remove(&id);
        });
    }
}

fn taken(client: std::net::TcpStream) -> io::Result<TcpStream> {
    client.set_nonblocking(true)?;
    TcpStream::from_std(client)
}

/// Carries one connection to its end, and closes both sides.
pub(super) async fn carry(client: TcpStream, shared: &Shared, link: &Link) {
    let (client, server) = (SetOnce::new_with(Some(client)), SetOnce::new());
    let (to_server, for_server) = mpsc::unbounded_channel();
    let (to_client, for_client) = mpsc::unbounded_channel();
    let both_ways = async {
        tokio::join!(
            connect(&server, shared, link),
            take(&client, to_server),
            take(&server, to_client),
            deliver(Way::ToServer, for_server, &server, shared, link),
            deliver(Way::ToClient, for_client, &client, shared, link),
        );
    };
    let end = tokio::select! {
        end = link.end.wait() => *end,
        () = both_ways => End::Orderly,
    };
    if end == End::Reset {
        for socket in [client.get(), server.get()].into_iter().flatten() {
            let _ = socket.set_zero_linger();
        }
    }
}

/// Connects to the server as soon as the way there is open.
pub(super) async fn connect(server: &SetOnce<TcpStream>, shared: &Shared, link: &Link) {
    let mut faults = shared.faults.subscribe();
    let open =
        |way: Way| move |faults: &Faults| !faults.flow(way).swallow && !faults.flow(way).hold;
    // The faults live as long as the proxy, so waiting for them cannot fail.
    let _ = faults.wait_for(open(Way::ToServer)).await;
    if let Ok(socket) = TcpStream::connect(shared.upstream).await {
        let _ = socket.set_nodelay(true);
        let _ = server.set(socket);
    } else {
        let _ = faults.wait_for(open(Way::ToClient)).await;
        link.finish(End::Reset);
    }
}

/// Reads all that comes from one side into the queue for the other.
pub(super) async fn take(from: &SetOnce<TcpStream>, queue: mpsc::UnboundedSender<Parcel>) {
    let from = from.wait().await;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = match from.readable().await {
            Ok(()) => from.try_read(&mut buffer),
            Err(error) => Err(error),
        };
        let bytes = match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            // A reset ends the stream, too.
            Ok(0) | Err(_) => None,
            Ok(count) => Some(buffer[..count].to_vec()),
        };
        let ended = bytes.is_none();
        let unwanted = queue
            .send(Parcel {
                arrived: Instant::now(),
                bytes,
            })
            .is_err();
        if ended || unwanted {
            return;
        }
    }
}

/// Hands out what is queued for one side, when and as far as the faults allow.
pub(super) async fn deliver(
    way: Way,
    mut queue: mpsc::UnboundedReceiver<Parcel>,
    to: &SetOnce<TcpStream>,
    shared: &Shared,
    link: &Link,
) {
    let mut changes = shared.faults.subscribe();
    let mut requests = Requests::default();
    while let Some(parcel) = queue.recv().await {
        if way == Way::ToServer && parcel.subscribes() {
            link.subscribed.store(true, Ordering::SeqCst);
        }
        let mut pending = Pending::new(parcel);
        loop {
            changes.mark_unchanged();
            let mut next = Next::Wait(None);
            shared.faults.send_if_modified(|faults| {
                next = pending.step(way, faults, to.get(), &mut requests, shared, link);
                // A task that waits here waits for the controls.
                false
            });
            match next {
                Next::Done => break,
                Next::Stop => return,
                Next::Again => {}
                Next::Writable => {
                    if to.wait().await.writable().await.is_err() {
                        return;
                    }
                }
                Next::Connected => {
                    tokio::select! {
                        _ = to.wait() => {}
                        _ = changes.changed() => {}
                    }
                }
                Next::Wait(due) => {
                    let due = async {
                        match due {
                            Some(due) => tokio::time::sleep_until(due).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        () = due => {}
                        _ = changes.changed() => {}
                    }
                }
            }
        }
    }
}

/// The next action after a step of a delivery.
pub(super) enum Next {
    /// With the next parcel.
    Done,
    /// Nothing more this way.
    Stop,
    /// The next step.
    Again,
    /// The next step, once the socket takes bytes.
    Writable,
    /// The next step, once there is a socket or other faults.
    Connected,
    /// The next step, at that time or once there are other faults.
    Wait(Option<Instant>),
}
