//! `scripts/find.lua`, in Rust. A page has all locks: memory serves no other client worse for it.

use super::{Store, numbers};
use crate::backend::find::{Cursor, FindPage, FoundPage};

impl Store {
    pub(crate) fn find(&self, step: &FindPage) -> FoundPage {
        let held = self.held.keys();
        // A number by itself says nothing. Permits that are out do, and clients that wait.
        let numbers = self.permits.keys().filter(|id| {
            numbers::is_number(id.kind)
                && !self.held.contains_key(id)
                && !self.subscribers(id).is_empty()
        });
        let keys = self.held.len() + self.permits.len();
        let locks = held.chain(numbers);
        let locks = locks.filter(|id| matches(step.pattern.as_bytes(), id.name.wire().as_bytes()));
        FoundPage {
            cursor: Cursor::default(),
            locks: locks
                .map(|id| (id.kind, id.name.wire().to_owned()))
                .collect(),
            keys: u64::try_from(keys).ok(),
            failed: None,
        }
    }
}

/// Whether a key has the form of a pattern, as `SCAN … MATCH` reads it: `*`, `?`, `[a-c]`, `[^a]`, and `\` before what stands for itself.
fn matches(mut pattern: &[u8], mut key: &[u8]) -> bool {
    // Behind the last `*`: the pattern there, and the key from which it was tried. An earlier one need not be tried again.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            (star, pattern) = (Some((rest, key)), rest);
            continue;
        }
        let [first, more @ ..] = key else {
            return pattern.is_empty();
        };
        if let Some(rest) = after_one(pattern, *first) {
            (pattern, key) = (rest, more);
        } else if let Some((rest, [_, later @ ..])) = star {
            (star, pattern, key) = (Some((rest, later)), rest, later);
        } else {
            return false;
        }
    }
}

/// The rest of a pattern without a `*` in front, if its beginning takes this byte.
fn after_one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', class @ ..] => {
            let (is_in, rest) = one_of(class, byte);
            is_in.then_some(rest)
        }
        [b'\\', one, rest @ ..] | [one, rest @ ..] => (*one == byte).then_some(rest),
    }
}

/// Whether a byte is one of those that a class names, and what stands behind the class.
fn one_of(class: &[u8], byte: u8) -> (bool, &[u8]) {
    let (not, mut class) = match class {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, class),
    };
    let mut is_in = false;
    loop {
        class = match class {
            // A class that is not closed ends with the pattern.
            [] => return (is_in != not, class),
            [b']', rest @ ..] => return (is_in != not, rest),
            [b'\\', one, rest @ ..] => {
                is_in |= *one == byte;
                rest
            }
            [from, b'-', to, rest @ ..] => {
                is_in |= (*from.min(to)..=*from.max(to)).contains(&byte);
                rest
            }
            [one, rest @ ..] => {
                is_in |= *one == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_to_a_server() {
        for (pattern, key, expected) in [
            ("*", "", true),
            ("*", "order:42", true),
            ("order:*", "order:42", true),
            ("order:*", "order:", true),
            ("order:*", "orders", false),
            ("*:4?", "order:42", true),
            ("*:4?", "order:4", false),
            ("*4*", "order:42", true),
            ("order:42", "order:42", true),
            ("order:42", "order:421", false),
            ("[a-cx]1", "b1", true),
            ("[a-cx]1", "x1", true),
            ("[c-a]1", "b1", true),
            ("[^a-c]1", "b1", false),
            ("[^a-c]1", "d1", true),
            ("[ab", "b", true),
            (r"a\*", "a*", true),
            (r"a\*", "ab", false),
            (r"[\]]", "]", true),
            (r"a\", r"a\", true),
            ("", "a", false),
            ("*ab*c", "aabxabc", true),
            ("*a*b", "aaa", false),
            // It would take a day if each `*` were tried with each of the others.
            (&"*a".repeat(30), &"a".repeat(60), true),
            (&("*a".repeat(30) + "b"), &"a".repeat(60), false),
        ] {
            let found = matches(pattern.as_bytes(), key.as_bytes());
            assert_eq!(found, expected, "{pattern:?} {key:?}");
        }
    }
}
