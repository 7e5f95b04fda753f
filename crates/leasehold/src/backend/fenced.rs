//! Fencing tokens, and what is written under them.

use std::sync::Arc;

use crate::name::Name;

/// The fencing tokens of one grant: the holder's own, and how many its client may give on to the next holders in memory.
///
/// In one number, since there is one in every hold, and there may be very many holds: the token in the upper 56 bits, the count in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tokens(u64);

/// Tokens are below it: every number of a script is exact up to here, and every JSON number. The clock gets here in 2255.
pub(crate) const TOKENS_END: u64 = 1 << 53;

/// The holder's own token, and one for each hand-off of the default budget. `scripts/exclusive/tokens.lua` has it too.
pub(crate) const BLOCK: u8 = 65;

impl Tokens {
    const SPARE_BITS: u32 = 8;

    /// Of a kind that has none.
    pub(crate) const NONE: Tokens = Tokens(0);

    /// `count` tokens from `first` on. `None` if that cannot be.
    pub(crate) fn new(first: u64, count: u8) -> Option<Tokens> {
        let spare = count.checked_sub(1)?;
        (1..TOKENS_END)
            .contains(&first)
            .then_some(Tokens(first << Tokens::SPARE_BITS | u64::from(spare)))
    }

    /// The holder's own; zero of a kind that has none.
    pub(crate) fn own(self) -> u64 {
        self.0 >> Tokens::SPARE_BITS
    }

    /// The tokens of the next holder in memory; `None` if they are used up. A kind without tokens never runs out.
    pub(crate) fn next(self) -> Option<Tokens> {
        let spare = self.0 & ((1 << Tokens::SPARE_BITS) - 1);
        if self == Tokens::NONE {
            return Some(self);
        }
        // The next token, and one fewer to spare.
        (spare > 0).then(|| Tokens(self.0 + (1 << Tokens::SPARE_BITS) - 1))
    }
}

/// A write to the data that a fence guards.
#[derive(Clone, Debug)]
pub(crate) struct FencedWrite {
    /// Whose tokens count.
    pub(crate) name: Name,
    pub(crate) key: Name,
    pub(crate) token: u64,
    pub(crate) change: Change,
}

/// The change that a write makes.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// With its end in so many ms, or without one.
    Set(Arc<[u8]>, Option<u64>),
    Delete,
    SetField(Arc<str>, Arc<[u8]>),
    DeleteField(Arc<str>),
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// Refused: the fence has seen this newer token.
    Stale {
        newest: u64,
    },
}

/// A look at data that a fence guards.
#[derive(Clone, Debug)]
pub(crate) struct FencedRead {
    pub(crate) name: Name,
    pub(crate) key: Name,
    pub(crate) part: FencedPart,
}

/// The part of the data that is read.
#[derive(Clone, Debug)]
pub(crate) enum FencedPart {
    Text,
    /// Of a hash.
    Field(Arc<str>),
    /// A text `<owner> …`, if that owner holds the fenced mutex of the name: `<ms left of its lease> <owner> …`, or -1 if it has no end.
    OfHolder,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_next_holder_has_a_larger_token_until_they_are_used_up() {
        let mut tokens = Tokens::new(7, 3).unwrap();
        for own in 7..=9 {
            assert_eq!(tokens.own(), own);
            match tokens.next() {
                Some(next) => tokens = next,
                None => assert_eq!(own, 9),
            }
        }
        assert_eq!(tokens.own(), 9);
        assert_eq!(Tokens::NONE.next(), Some(Tokens::NONE));
    }

    #[test]
    fn tokens_that_no_script_gives_are_none() {
        assert_eq!(Tokens::new(0, 1), None);
        assert_eq!(Tokens::new(TOKENS_END, 1), None);
        assert_eq!(Tokens::new(1, 0), None);
        assert_eq!(
            Tokens::new(TOKENS_END - 1, u8::MAX).unwrap().own(),
            TOKENS_END - 1
        );
    }
}
