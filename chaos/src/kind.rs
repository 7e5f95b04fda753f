//! The kinds of locks that are fought for. The name of a lock says which it is.

use std::fmt;

use leasehold_testkit::Server;

use crate::topology::Topology;

/// A kind, or for a read-write lock what it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    Fenced,
    Rw,
    Plain,
    Spin,
    /// A leased semaphore of one permit.
    Permit,
    Fair,
    /// Latches, one after the other: each has a name of its own that begins with this one's.
    Latch,
}

impl Kind {
    pub(crate) const ALL: [Kind; 8] = [
        Kind::Mutex,
        Kind::Fenced,
        Kind::Rw,
        Kind::Plain,
        Kind::Spin,
        Kind::Permit,
        Kind::Fair,
        Kind::Latch,
    ];

    fn word(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::Fenced => "fenced",
            Kind::Rw => "rw",
            Kind::Plain => "plain",
            Kind::Spin => "spin",
            Kind::Permit => "permit",
            Kind::Fair => "fair",
            Kind::Latch => "latch",
        }
    }

    /// Whether it has a lease, and so can be a part of a multi-lock.
    pub(crate) fn is_leased(self) -> bool {
        self != Kind::Latch
    }

    /// The key of its permits that are out, if it has permits.
    pub(crate) fn permits_out(self, name: &str) -> Option<String> {
        match self {
            Kind::Permit => Some(format!("{{{name}}}:timeout")),
            _ => None,
        }
    }

    /// The numbers of those of this kind.
    pub(crate) fn numbers_of(self, names: &[String]) -> Vec<usize> {
        let is_one = |number: &usize| Kind::of(&names[*number]) == self;
        (0..names.len()).filter(is_one).collect()
    }

    /// The kind of the lock with this name.
    pub(crate) fn of(name: &str) -> Kind {
        let word = name.split(':').next().unwrap_or_default();
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word);
        kind.expect("a name that was made here")
    }
}

/// Makes the semaphores among these names that the server does not have, with their permit, as any library does. It tells so by
/// these commands.
pub(crate) fn prepare(
    server: &Server,
    names: &[String],
    publish: &[&str],
) -> redis::RedisResult<()> {
    let mut made = redis::pipe();
    let has_permits = |name: &&String| Kind::of(name).permits_out(name).is_some();
    let names: Vec<&String> = names.iter().filter(has_permits).collect();
    if names.is_empty() {
        return Ok(());
    }
    for name in names {
        made.cmd("SET").arg(name).arg(1).arg("NX");
        // For those that wait already.
        let channel = format!("redisson_sc:{{{name}}}");
        for publish in publish {
            made.cmd(publish).arg(&channel).arg(1);
        }
    }
    // Over a connection that ends here: the nemesis cuts those that stay open, the test kit's own too.
    made.exec(&mut server.connection())
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The kinds of a run. A type of its own, since clap takes a `Vec` for several arguments.
#[derive(Clone, Debug)]
pub(crate) struct Kinds(Vec<Kind>);

impl Kinds {
    /// `all`, or kinds separated by commas.
    pub(crate) fn parse(given: &str) -> Result<Kinds, String> {
        if given == "all" {
            return Ok(Kinds(Kind::ALL.to_vec()));
        }
        let kinds = given.split(',').map(|word| {
            let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word);
            kind.ok_or_else(|| {
                let known = Kind::ALL.map(Kind::word).join(", ");
                format!("no kind is called {word}; there are {known}, and all")
            })
        });
        kinds.collect::<Result<_, _>>().map(Kinds)
    }

    /// The kinds of these that the topology has; all that it has, if it has none of these.
    pub(crate) fn on(self, topology: Topology) -> Kinds {
        let there = |kinds: &[Kind]| {
            let kinds = kinds.iter().copied();
            kinds.filter(|kind| topology.has(*kind)).collect::<Vec<_>>()
        };
        match there(&self.0) {
            kinds if kinds.is_empty() => Kinds(there(&Kind::ALL)),
            kinds => Kinds(kinds),
        }
    }

    /// So many names, of these kinds in turn.
    pub(crate) fn names(&self, count: usize) -> Vec<String> {
        let kinds = self.0.iter().cycle().take(count);
        let numbered = kinds.zip(1..);
        numbered
            .map(|(kind, number)| format!("{kind}:{number}"))
            .collect()
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.0.iter().map(|kind| kind.word()).collect();
        f.write_str(&words.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_their_kinds_in_turn() {
        let kinds = Kinds::parse("mutex,rw").unwrap();
        assert_eq!(kinds.names(3), ["mutex:1", "rw:2", "mutex:3"]);
        assert_eq!(Kind::of("rw:2"), Kind::Rw);
        let all = Kinds::parse("all").unwrap();
        assert_eq!(Kinds::parse(&all.to_string()).unwrap().0, Kind::ALL);
        assert!(Kinds::parse("sema").unwrap_err().contains("mutex"));
    }
}
