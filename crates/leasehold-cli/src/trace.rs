//! `-v`: the events of the library and of this program, as lines on stderr. Those of a lock are the library's; this program adds what
//! becomes of the command.

use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt::{self, MakeWriter, time::uptime},
    layer::{Layer, SubscriberExt},
};

/// From now on events are written, if the user has asked for them.
pub(crate) fn start<W>(verbose: u8, to: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let level = match verbose {
        0 => return,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    // The library and this program have one name.
    let ours = Targets::new().with_target("leasehold", level);
    // The writer takes the colours out where they are not wanted.
    let lines = fmt::layer()
        .with_writer(to)
        .with_ansi(true)
        .with_timer(uptime())
        .with_target(false);
    let events = tracing_subscriber::registry().with(lines.with_filter(ours));
    // It fails if there is one already, which writes then.
    let _ = tracing::subscriber::set_global_default(events);
}
