//! After the calm of a cluster: whether all that wait for a name listen at the node that has it, and nowhere else, as the nodes count it.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Guard};
use tokio::runtime::Builder;

use super::run::Run;
use crate::{kind::Kind, ops};

/// Until then each process waits for the names.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Run<'_> {
    /// Has the mutexes among the names while each process waits for them, and counts who listens.
    pub(super) fn count_listeners(&mut self) {
        let names = self.args.lock_names();
        let numbers = Kind::Mutex.numbers_of(&names);
        if self.field.servers.nodes().is_none() || numbers.is_empty() || !self.all_quiet() {
            return;
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let url = self.field.servers.url(0);
        let client = ops::builder(self.is_classic).url(&url).connect();
        let taken = runtime.block_on(async {
            let client = client.await?;
            let mut guards = Vec::new();
            for number in &numbers {
                guards.push(take(&client, &names[*number]).await?);
            }
            Ok::<_, Error>(guards)
        });
        let guards = match taken {
            Ok(guards) => guards,
            Err(error) => return self.other.push(format!("after the calm: {error}")),
        };
        self.checker.quiet.clear();
        self.tell("wait");
        for number in numbers {
            self.count(number, &names[number]);
        }
        self.calm_begins();
        // Without an answer the lease ends, and those that wait tell how long that took.
        runtime.block_on(async {
            for guard in guards {
                let _ = guard.release().await;
            }
        });
        self.wait_until_quiet(1);
    }

    fn count(&mut self, number: usize, name: &str) {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let processes = self.field.workers.iter().flatten().count() as u64;
        let start = Instant::now();
        loop {
            self.look();
            let nodes = self.field.servers.nodes().expect("it is a cluster");
            let (here, elsewhere) = nodes.listeners(number, &channel);
            if here == processes && elsewhere == 0 {
                return;
            }
            if start.elapsed() > HEARD_WITHIN {
                self.other.push(format!(
                    "{processes} clients wait for {name}: {here} listen at its node, {elsewhere} elsewhere"
                ));
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

async fn take(client: &Client, name: &str) -> Result<Guard, Error> {
    client.mutex(name).lock().await
}
