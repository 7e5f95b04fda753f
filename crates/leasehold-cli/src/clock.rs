//! The clock deadlines are set on, shared by all processes of this machine, and a way to wait for it.
//!
//! `CLOCK_BOOTTIME` counts while the machine sleeps, as the server's clock does. A timer on it fires the
//! moment the machine wakes, whereas a plain timeout would first run for the rest of its time.

use std::{io, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    time::{ClockId, clock_gettime},
};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Time since the machine started.
pub(crate) fn now() -> Duration {
    duration(clock_gettime(CLOCK))
}

fn duration(time: Timespec) -> Duration {
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Waits for file descriptors and for a point in time at once.
pub(crate) struct Alarm {
    #[cfg(target_os = "linux")]
    timer: std::os::fd::OwnedFd,
}

#[cfg(target_os = "linux")]
impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let timer = timerfd_create(
            TimerfdClockId::Boottime,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        Ok(Alarm { timer })
    }

    /// Returns which of `fds` are ready for what they want or have ended, at `at` at the latest.
    pub(crate) fn wait<const N: usize>(
        &self,
        fds: &[Option<PollFd<'_>>; N],
        at: Option<Duration>,
    ) -> io::Result<[bool; N]> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};
        // A time of zero would disarm the timer; one nanosecond after boot is over, too.
        let at = at.map(|at| at.max(Duration::from_nanos(1)));
        let spec = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(at.unwrap_or_default()),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        poll_all(fds, Some(&PollFd::new(&self.timer, PollFlags::IN)), None)
    }
}

/// Without a timer on the right clock, look at it often enough.
#[cfg(not(target_os = "linux"))]
impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Alarm {})
    }

    /// Returns which of `fds` are ready for what they want or have ended, at `at` at the latest.
    pub(crate) fn wait<const N: usize>(
        &self,
        fds: &[Option<PollFd<'_>>; N],
        at: Option<Duration>,
    ) -> io::Result<[bool; N]> {
        const LOOK_EVERY: Duration = Duration::from_millis(100);
        loop {
            let left = at.map(|at| at.saturating_sub(now()));
            let ready = poll_all(fds, None, left.map(|left| left.min(LOOK_EVERY)))?;
            if ready.contains(&true) || left.is_some_and(|left| left.is_zero()) {
                return Ok(ready);
            }
        }
    }
}

/// Which of `fds` are ready or have ended. `None` among them never is.
fn poll_all<const N: usize>(
    fds: &[Option<PollFd<'_>>; N],
    timer: Option<&PollFd<'_>>,
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled: Vec<_> = fds.iter().flatten().chain(timer).cloned().collect();
    match poll(&mut polled, timeout.map(timespec).as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut answers = polled.iter().map(|fd| !fd.revents().is_empty());
    Ok(fds
        .each_ref()
        .map(|fd| fd.is_some() && answers.next() == Some(true)))
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    fn readable(stream: &UnixStream) -> PollFd<'_> {
        PollFd::new(stream, PollFlags::IN)
    }

    #[test]
    fn the_alarm_rings_at_its_time_and_not_before() {
        let (quiet, _other) = UnixStream::pair().unwrap();
        let at = now() + Duration::from_millis(20);
        let ready = Alarm::new()
            .unwrap()
            .wait(&[Some(readable(&quiet))], Some(at))
            .unwrap();
        assert_eq!(ready, [false]);
        assert!(now() >= at);
    }

    #[test]
    fn an_alarm_in_the_past_rings_at_once() {
        let (quiet, _other) = UnixStream::pair().unwrap();
        let alarm = Alarm::new().unwrap();
        assert_eq!(
            alarm
                .wait(&[Some(readable(&quiet))], Some(Duration::ZERO))
                .unwrap(),
            [false]
        );
    }

    #[test]
    fn a_stream_that_is_left_out_wakes_nobody() {
        let (ended, _) = UnixStream::pair().unwrap();
        let alarm = Alarm::new().unwrap();
        let at = Some(now() + Duration::from_millis(5));
        assert_eq!(
            alarm.wait(&[None, Some(readable(&ended))], at).unwrap(),
            [false, true]
        );
        assert_eq!(alarm.wait(&[None, None], at).unwrap(), [false, false]);
    }

    #[test]
    fn bytes_and_the_end_of_a_stream_wake_the_waiter() {
        let (a, mut to_a) = UnixStream::pair().unwrap();
        let (b, to_b) = UnixStream::pair().unwrap();
        let alarm = Alarm::new().unwrap();
        to_a.write_all(b"x").unwrap();
        assert_eq!(
            alarm
                .wait(&[Some(readable(&a)), Some(readable(&b))], None)
                .unwrap(),
            [true, false]
        );
        drop(to_b);
        assert_eq!(
            alarm
                .wait(&[Some(readable(&a)), Some(readable(&b))], None)
                .unwrap(),
            [true, true]
        );
    }

    #[test]
    fn room_in_a_stream_and_the_end_of_its_reader_wake_a_writer() {
        let (full, reader) = UnixStream::pair().unwrap();
        full.set_nonblocking(true).unwrap();
        let alarm = Alarm::new().unwrap();
        let writable = || Some(PollFd::new(&full, PollFlags::OUT));
        assert_eq!(alarm.wait(&[writable()], None).unwrap(), [true]);
        while (&full).write(&[0; 4096]).is_ok() {}
        let at = Some(now() + Duration::from_millis(5));
        assert_eq!(alarm.wait(&[writable()], at).unwrap(), [false]);
        drop(reader);
        assert_eq!(alarm.wait(&[writable()], None).unwrap(), [true]);
    }
}
