//! S1: two guards that exclude each other are never both valid at one instant.

use serde::Serialize;

/// A guard, wherever it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) struct GuardId {
    /// Which worker process, and which of its lives.
    pub(crate) process: u64,
    /// Its number there.
    pub(crate) guard: u64,
}

/// The time for which a guard was proved valid. See [`witness`](crate::witness).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Span {
    pub(crate) id: GuardId,
    /// Guards of one holder do not exclude each other.
    pub(crate) holder: u64,
    pub(crate) name: usize,
    /// Guards that are shared do not exclude each other.
    pub(crate) shared: bool,
    pub(crate) owner: String,
    /// Of a fenced mutex.
    pub(crate) token: Option<u64>,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Nothing more will be added to it.
    pub(crate) ended: bool,
}

impl Span {
    fn excludes(&self, other: &Span) -> bool {
        self.name == other.name
            && !(self.shared && other.shared)
            && (self.id.process, self.holder) != (other.id.process, other.holder)
    }

    /// The instants at which both were valid. Touching ends are none.
    pub(crate) fn meets(&self, other: &Span) -> Option<(u64, u64)> {
        let (from, to) = (self.from.max(other.from), self.to.min(other.to));
        (from < to).then_some((from, to))
    }
}

/// All pairs of spans that exclude each other and meet, as places in `spans`.
pub(crate) fn meetings(spans: &[&Span]) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..spans.len())
        .filter(|&i| spans[i].from < spans[i].to)
        .collect();
    order.sort_by_key(|&i| spans[i].from);
    let mut found = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for next in order {
        open.retain(|&i| spans[i].to > spans[next].from);
        let met = open.iter().filter(|&&i| spans[i].excludes(spans[next]));
        found.extend(met.map(|&i| (i, next)));
        open.push(next);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(process: u64, guard: u64, from: u64, to: u64) -> Span {
        Span {
            id: GuardId { process, guard },
            holder: guard,
            name: 0,
            shared: false,
            owner: String::new(),
            token: None,
            from,
            to,
            ended: true,
        }
    }

    fn found(spans: &[Span]) -> Vec<(usize, usize)> {
        meetings(&spans.iter().collect::<Vec<_>>())
    }

    #[test]
    fn two_valid_at_one_instant_are_found() {
        assert_eq!(found(&[span(1, 1, 0, 10), span(2, 1, 9, 20)]), [(0, 1)]);
        assert_eq!(found(&[span(2, 1, 9, 20), span(1, 1, 0, 10)]), [(1, 0)]);
        // A span within another, and a third after both began.
        let three = [span(1, 1, 0, 100), span(2, 1, 10, 20), span(3, 1, 50, 60)];
        assert_eq!(found(&three), [(0, 1), (0, 2)]);
        // Two tasks of one process exclude each other as well.
        assert_eq!(found(&[span(1, 1, 0, 10), span(1, 2, 9, 20)]), [(0, 1)]);
    }

    #[test]
    fn touching_spans_and_single_looks_do_not_meet() {
        assert_eq!(found(&[span(1, 1, 0, 10), span(2, 1, 10, 20)]), []);
        assert_eq!(found(&[span(1, 1, 0, 10), span(2, 1, 5, 5)]), []);
        assert_eq!(found(&[span(1, 1, 0, 10), span(2, 1, 6, 5)]), []);
    }

    #[test]
    fn other_names_and_nested_guards_do_not_exclude() {
        let mut elsewhere = span(2, 1, 5, 15);
        elsewhere.name = 1;
        assert_eq!(found(&[span(1, 1, 0, 10), elsewhere]), []);
        let mut nested = span(1, 2, 5, 15);
        nested.holder = 1;
        assert_eq!(found(&[span(1, 1, 0, 10), nested.clone()]), []);
        let mut reader = span(1, 1, 0, 10);
        reader.shared = true;
        let mut another = span(2, 1, 5, 15);
        assert_eq!(found(&[reader.clone(), another.clone()]), [(0, 1)]);
        another.shared = true;
        assert_eq!(found(&[reader, another]), []);
        // The same holder number in another process is another holder.
        nested.id.process = 2;
        assert_eq!(found(&[span(1, 1, 0, 10), nested]), [(0, 1)]);
    }
}
