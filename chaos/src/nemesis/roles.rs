//! Which of some servers that replace each other is their primary by now.

use leasehold_testkit::Server;
use redis::from_redis_value;

/// Another server has become the primary.
#[derive(Clone, Debug)]
pub(crate) struct Switch {
    /// When it was seen last that it was none.
    pub(crate) after: u64,
    /// When it was seen first that it is one.
    pub(crate) seen: u64,
    /// The numbers of the names that are kept there; `None`: of all.
    pub(crate) names: Option<Vec<usize>>,
    /// It was told all before it took over, and the old one takes nothing since then.
    pub(crate) knows_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Primary,
    Replica,
    /// It says that it is a primary, until the others have told it otherwise.
    Former,
    /// Dead or frozen.
    Away,
}

/// By the places of the servers.
#[derive(Debug)]
pub(super) struct Roles(Vec<Role>);

impl Roles {
    pub(super) fn new(count: usize, primary: usize) -> Roles {
        let role = |place| match place {
            place if place == primary => Role::Primary,
            _ => Role::Replica,
        };
        Roles((0..count).map(role).collect())
    }

    /// The primary, if it is well.
    pub(super) fn primary(&self) -> Option<usize> {
        self.0.iter().position(|role| *role == Role::Primary)
    }

    pub(super) fn is_away(&self, place: usize) -> bool {
        self.0[place] == Role::Away
    }

    /// It goes on, as the primary if there is no other.
    pub(super) fn goes_on(&mut self, place: usize) {
        self.0[place] = match self.primary() {
            Some(_) => Role::Former,
            None => Role::Primary,
        };
    }

    /// It has this role from now on. Answers with the one before.
    pub(super) fn set(&mut self, place: usize, role: Role) -> Role {
        std::mem::replace(&mut self.0[place], role)
    }

    fn is_without(&self) -> bool {
        let serves = [Role::Primary, Role::Away];
        !self.0.iter().any(|role| serves.contains(role))
    }

    /// Asks those that are well. Answers with the one that has become the primary.
    pub(super) fn look<'a>(&mut self, server: impl Fn(usize) -> &'a Server) -> Option<usize> {
        let mut new = None;
        for place in 0..self.0.len() {
            if self.0[place] == Role::Away {
                continue;
            }
            let says = role(server(place));
            match (self.0[place], says.as_deref()) {
                (_, Some("slave")) => self.0[place] = Role::Replica,
                (Role::Replica, Some("master")) => {
                    if let Some(old) = self.primary() {
                        self.0[old] = Role::Former;
                    }
                    self.0[place] = Role::Primary;
                    new = Some(place);
                }
                // The one that took its place was not accepted by all.
                (Role::Former, Some("master")) if self.is_without() => {
                    self.0[place] = Role::Primary;
                    new = Some(place);
                }
                _ => {}
            }
        }
        new
    }
}

/// Whether the server could be replaced.
pub(super) fn has_replica(server: &Server) -> bool {
    let info = server.try_cli(&["INFO", "replication"]);
    let info = info.ok().and_then(|info| from_redis_value(info).ok());
    info.is_some_and(|info: String| info.contains("state=online"))
}

fn role(server: &Server) -> Option<String> {
    let answer: Vec<redis::Value> = from_redis_value(server.try_cli(&["ROLE"]).ok()?).ok()?;
    from_redis_value(answer.into_iter().next()?).ok()
}
