//! `-v`: the events of the library and of this program, as lines on stderr. The library tells of a lock; this program adds what
//! becomes of the command. `run` without it tells only that the server cannot be trusted with locks, or wakes no waiter.

use std::fmt::{Debug, Result};

use anstyle::Style;
use tracing::{Event, Subscriber, field::Field};
use tracing_subscriber::{
    field::MakeExt,
    filter::{LevelFilter, Targets},
    fmt::{
        self, FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::{self, Writer},
        time::uptime,
    },
    layer::{Layer, SubscriberExt},
    registry::LookupSpan,
};

use crate::output::visible;

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
        .fmt_fields(format::debug_fn(shown).delimited(" "))
        .with_writer(to)
        .with_ansi(true)
        .with_timer(uptime())
        .with_target(false);
    let events = tracing_subscriber::registry().with(lines.with_filter(ours));
    // It fails if there is one already, which writes then.
    let _ = tracing::subscriber::set_global_default(events);
}

/// From now on the worst that `doctor` could find is written.
pub(crate) fn start_quietly<W>(to: W)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let dangers = Targets::new().with_target("leasehold::danger", LevelFilter::WARN);
    let lines = fmt::layer()
        .fmt_fields(format::debug_fn(shown).delimited(" "))
        .with_writer(to)
        .event_format(Remark);
    let events = tracing_subscriber::registry().with(lines.with_filter(dangers));
    let _ = tracing::subscriber::set_global_default(events);
}

/// As `output::remark`.
struct Remark;

impl<S, N> FormatEvent<S, N> for Remark
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> Result {
        to.write_str("leasehold: ")?;
        context.format_fields(to.by_ref(), event)?;
        writeln!(to)
    }
}

/// A field of an event or a span. Names may hold what a terminal obeys.
fn shown(to: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> Result {
    let value = visible(&format!("{value:?}"));
    if field.name() == "message" {
        return to.write_str(&value);
    }
    let (name, is) = (Style::new().italic(), Style::new().dimmed());
    write!(to, "{name}{field}{name:#}{is}={is:#}{value}")
}
