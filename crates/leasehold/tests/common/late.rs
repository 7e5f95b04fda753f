//! How late this machine is, for tests that hold a bound in real time: a machine that does something else besides is slow in everything.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Two threads of this process that pass a byte to and fro, as a client and its server do, and sleep in between: no code of the library.
/// They note how late each byte was.
pub struct Control {
    noted: Arc<Mutex<Noted>>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

struct Noted {
    latest: Duration,
    /// Of the byte that is under way.
    sent: Option<Instant>,
}

const MS: Duration = Duration::from_millis(1);

impl Control {
    pub fn start() -> Control {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let noted = Arc::new(Mutex::new(Noted {
            latest: Duration::ZERO,
            sent: None,
        }));
        let ends = Arc::new(AtomicBool::new(false));
        let answers = std::thread::spawn(move || {
            let mut byte = [0];
            while far.read_exact(&mut byte).is_ok() {
                let _ = far.write_all(&byte);
            }
        });
        let (writes, stops) = (Arc::clone(&noted), Arc::clone(&ends));
        let asks = std::thread::spawn(move || {
            let mut byte = [0];
            while !stops.load(Ordering::Relaxed) {
                let began = Instant::now();
                writes.lock().unwrap().sent = Some(began);
                std::thread::sleep(MS);
                near.write_all(&byte).unwrap();
                near.read_exact(&mut byte).unwrap();
                let mut noted = writes.lock().unwrap();
                noted.latest = noted.latest.max(began.elapsed().saturating_sub(MS));
            }
        });
        Control {
            noted,
            ends,
            threads: vec![answers, asks],
        }
    }

    /// How late the latest was since the start, or since this was asked last.
    pub fn latest(&self) -> Duration {
        let mut noted = self.noted.lock().unwrap();
        let under_way = noted.sent.map_or(Duration::ZERO, |sent| sent.elapsed());
        std::mem::take(&mut noted.latest).max(under_way.saturating_sub(MS))
    }

    /// The same, at its end.
    pub fn end(self) -> Duration {
        self.latest()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // The one that asks ends first, and closes the other's connection.
        while let Some(thread) = self.threads.pop() {
            let _ = thread.join();
        }
    }
}

/// So many rounds are played again before a machine counts as useless.
const ROUNDS_MOST: usize = 10;

/// Plays a round, which returns how long something took, and holds it to `most`. A round in which the machine itself was late, by a quarter
/// of that, says nothing if it took longer, and is played again.
#[track_caller]
pub fn in_time(what: &str, most: Duration, mut round: impl FnMut() -> Duration) -> Duration {
    let control = Control::start();
    let mut judge = Judge::new(what, most);
    loop {
        control.latest();
        let took = round();
        if judge.is_in_time(took, control.latest()) {
            return took;
        }
    }
}

/// The same, of a round that waits.
pub async fn in_time_async(
    what: &str,
    most: Duration,
    mut round: impl AsyncFnMut() -> Duration,
) -> Duration {
    let control = Control::start();
    let mut judge = Judge::new(what, most);
    loop {
        control.latest();
        let took = round().await;
        if judge.is_in_time(took, control.latest()) {
            return took;
        }
    }
}

struct Judge<'a> {
    what: &'a str,
    most: Duration,
    rounds: usize,
}

impl<'a> Judge<'a> {
    fn new(what: &'a str, most: Duration) -> Judge<'a> {
        Judge {
            what,
            most,
            rounds: 0,
        }
    }

    #[track_caller]
    fn is_in_time(&mut self, took: Duration, late: Duration) -> bool {
        let Judge { what, most, .. } = self;
        if took <= *most {
            return true;
        }
        self.rounds += 1;
        assert!(
            late > *most / 4 && self.rounds < ROUNDS_MOST,
            "{what} took {took:?}, {most:?} at most, and this machine was late by {late:?}"
        );
        println!("{what} took {took:?}: again, since this machine was late by {late:?}");
        false
    }
}
