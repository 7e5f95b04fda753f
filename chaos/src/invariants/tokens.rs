//! Tokens grow: who holds a name later has a larger one.

use super::overlap::{GuardId, Span};

/// The pairs of which the later guard has a token that is not larger, as places in `spans`. A guard is later if it was seen valid
/// first after the other was seen valid last.
pub(crate) fn not_grown(spans: &[&Span]) -> Vec<(usize, usize)> {
    let with_token = (0..spans.len()).filter(|&i| spans[i].token.is_some());
    let mut by_begin: Vec<usize> = with_token.collect();
    let mut by_end = by_begin.clone();
    by_begin.sort_by_key(|&i| spans[i].from);
    by_end.sort_by_key(|&i| spans[i].to);
    let mut ended = by_end.into_iter().peekable();
    let (mut found, mut largest) = (Vec::new(), None::<usize>);
    let mut ended_before = Vec::new();
    for next in by_begin {
        while let Some(end) = ended.next_if(|&end| spans[end].to < spans[next].from) {
            if largest.is_none_or(|it| spans[it].token < spans[end].token) {
                largest = Some(end);
            }
            ended_before.push(end);
        }
        let holder = |i: usize| (spans[i].id.process, spans[i].holder);
        let is_larger = |it: usize| spans[it].token >= spans[next].token;
        if largest.is_some_and(is_larger) {
            // All of them: for one there may be an excuse.
            let before = ended_before.iter().copied();
            let before = before.filter(|&it| is_larger(it) && holder(it) != holder(next));
            found.extend(before.map(|it| (it, next)));
        }
    }
    found
}

/// Two guards in words.
pub(crate) fn told(one: &Span, other: &Span) -> String {
    let side = |span: &Span| {
        let GuardId { process, guard } = span.id;
        format!(
            "guard {guard} of process {process} token {}",
            span.token.unwrap_or(0)
        )
    };
    format!(
        "name {}: {}, and later {}",
        one.name,
        side(one),
        side(other)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(guard: u64, holder: u64, token: Option<u64>, from: u64, to: u64) -> Span {
        Span {
            id: GuardId { process: 1, guard },
            holder,
            name: 0,
            shared: false,
            owner: String::new(),
            token,
            from,
            to,
            ended: true,
        }
    }

    #[test]
    fn a_later_guard_has_a_larger_token_unless_it_re_entered() {
        let spans = [
            span(1, 1, Some(7), 0, 10),
            span(2, 1, Some(7), 11, 12),
            span(3, 3, None, 13, 14),
            span(4, 4, Some(9), 15, 20),
            span(5, 5, Some(8), 16, 21),
            span(6, 6, Some(9), 30, 31),
            span(7, 7, Some(8), 40, 41),
        ];
        let spans: Vec<&Span> = spans.iter().collect();
        assert_eq!(not_grown(&spans), [(3, 5), (3, 6), (4, 6), (5, 6)]);
    }
}
