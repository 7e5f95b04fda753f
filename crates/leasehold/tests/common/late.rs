//! How late this machine is, for tests that hold a bound in real time: a machine that does something else besides is slow in everything.
//!
//! Two measures, of which the larger counts: a byte that two threads pass to and fro, as a client and its server do; and, where the kernel
//! says it, for how long some thread of the machine was ready and had no processor. The second sees what other processes suffer.

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

/// Two threads of this process that pass a byte to and fro, and sleep in between: no code of the library. They note how late each byte was.
pub struct Control {
    noted: Arc<Mutex<Noted>>,
    /// The time without a processor that the kernel had counted when it was asked last.
    waited: Mutex<Duration>,
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
            waited: Mutex::new(waited_for_a_processor()),
            ends,
            threads: vec![answers, asks],
        }
    }

    /// How late the latest was since the start, or since this was asked last.
    pub fn latest(&self) -> Duration {
        let waited = waited_for_a_processor();
        let before = std::mem::replace(&mut *self.waited.lock().unwrap(), waited);
        let mut noted = self.noted.lock().unwrap();
        let under_way = noted.sent.map_or(Duration::ZERO, |sent| sent.elapsed());
        let byte = std::mem::take(&mut noted.latest).max(under_way.saturating_sub(MS));
        byte.max(waited.saturating_sub(before))
    }

    /// The same, at its end.
    pub fn end(self) -> Duration {
        self.latest()
    }
}

/// Since the machine was started, as Linux counts it.
fn waited_for_a_processor() -> Duration {
    let said = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total = said
        .lines()
        .next()
        .and_then(|some| some.rsplit_once("total="));
    let micros = total.and_then(|(_, micros)| micros.parse().ok());
    Duration::from_micros(micros.unwrap_or_default())
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

/// So many rounds are played before a machine counts as useless.
const ROUNDS_MOST: usize = 10;

/// Plays a round whose promise holds within `most`, and says what went wrong. A round in which the machine itself was late, by a quarter of
/// that, shows nothing if it failed, and is played again.
#[track_caller]
pub fn unless_late(what: &str, most: Duration, mut round: impl FnMut() -> Result<(), String>) {
    let control = Control::start();
    for played in 1.. {
        control.latest();
        let Err(wrong) = round() else { return };
        judge(what, most, played, &wrong, control.latest());
    }
}

/// The same, of a round that waits.
pub async fn unless_late_async(
    what: &str,
    most: Duration,
    mut round: impl AsyncFnMut() -> Result<(), String>,
) {
    let control = Control::start();
    for played in 1.. {
        control.latest();
        let Err(wrong) = round().await else { return };
        judge(what, most, played, &wrong, control.latest());
    }
}

/// `Err` with both times if `took` is longer than `most`.
pub fn in_time(took: Duration, most: Duration) -> Result<(), String> {
    if took <= most {
        return Ok(());
    }
    Err(format!("{took:?}, {most:?} at most"))
}

/// Such a round, that a test plays by itself.
#[track_caller]
pub fn judge(what: &str, most: Duration, played: usize, wrong: &str, late: Duration) {
    assert!(
        late > most / 4 && played < ROUNDS_MOST,
        "{what}: {wrong}; this machine was late by {late:?}"
    );
    println!("{what}: {wrong}; again, since this machine was late by {late:?}");
}
