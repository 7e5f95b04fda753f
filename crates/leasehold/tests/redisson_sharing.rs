//! A name that processes of ours and JVMs want without end: each side has its share by the number of processes, and none waits long.

mod common;

use std::time::{Duration, Instant};

use common::{redisson::Redisson, servers, wait_until_idle};
use futures_util::future::join_all;
use leasehold::Client;
use leasehold_testkit::Server;

const LEASE: Duration = Duration::from_secs(30);

/// Takes it again and again: how often, and the longest wait.
macro_rules! contend {
    ($lock:expr, $take:ident, $held:expr, $end:expr) => {{
        let (mut holds, mut longest) = (0_u64, Duration::ZERO);
        while Instant::now() < $end {
            let asked = Instant::now();
            let guard = $lock.$take().await.unwrap();
            longest = longest.max(asked.elapsed());
            holds += 1;
            if !$held.is_zero() {
                tokio::time::sleep($held).await;
            }
            guard.release().await.unwrap();
        }
        (holds, longest)
    }};
}

async fn contend(client: Client, kind: &str, held: Duration, end: Instant) -> (u64, Duration) {
    match kind {
        "mutex" => contend!(client.mutex("mutex"), lock, held, end),
        "fenced" => contend!(client.fenced_mutex("fenced"), lock, held, end),
        "spin" => contend!(client.spin_mutex("spin"), lock, held, end),
        "write" => contend!(client.rw_lock("write"), write, held, end),
        "permits" => contend!(client.leased_semaphore("permits"), acquire, held, end),
        "semaphore" => contend!(client.semaphore("semaphore"), acquire, held, end),
        other => unreachable!("{other}"),
    }
}

/// So many of each, how many tasks each has, and how long each holds it, for so long in all.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: &'static str,
    ours: usize,
    theirs: usize,
    tasks: usize,
    held: Duration,
    time: Duration,
}

/// The share that each side had.
struct Shares {
    case: Case,
    /// Holds and the longest wait.
    ours: (u64, Duration),
    /// Holds of each process of ours.
    each: Vec<u64>,
    theirs: (u64, Duration),
}

async fn share(case: Case, clients: &[Client], java: &mut [Redisson]) -> Shares {
    let Case {
        kind,
        tasks,
        held,
        time,
        ..
    } = case;
    let java = &mut java[..case.theirs];
    for peer in java.iter_mut() {
        let (held, time) = (held.as_micros(), time.as_millis());
        peer.order(&format!("contend {kind} {kind} {tasks} {held} {time}"));
    }
    let end = Instant::now() + time;
    let running = clients[..case.ours]
        .iter()
        .flat_map(|client| (0..tasks).map(move |_| client.clone()))
        .map(|client| tokio::spawn(contend(client, kind, held, end)));
    let all = |sum: (u64, Duration), one: (u64, Duration)| (sum.0 + one.0, sum.1.max(one.1));
    let ours: Vec<_> = join_all(running)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let each = ours.chunks(tasks);
    let each = each.map(|tasks| tasks.iter().map(|task| task.0).sum());
    let each = each.collect();
    let ours = ours.into_iter().fold((0, Duration::ZERO), all);
    let mut theirs = (0, Duration::ZERO);
    for peer in java {
        let answer = peer.answer().await;
        let (holds, waited) = answer.split_once(' ').expect("two numbers");
        let waited = Duration::from_micros(waited.parse().unwrap());
        theirs = all(theirs, (holds.parse().unwrap(), waited));
    }
    Shares {
        case,
        ours,
        each,
        theirs,
    }
}

impl Shares {
    /// Each side is within so much of its share, and of ours none has less than a tenth of what another has.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn is_fair(&self, slack: f64) -> bool {
        let all = (self.ours.0 + self.theirs.0) as f64;
        let part = self.ours.0 as f64 / all;
        let fair = self.case.ours as f64 / (self.case.ours + self.case.theirs) as f64;
        let none_starves =
            self.each.iter().min() > self.each.iter().max().map(|most| most / 10).as_ref();
        none_starves && (part - fair).abs() < fair.min(1.0 - fair) * slack
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn line(&self) -> String {
        let Case {
            kind,
            ours,
            theirs,
            tasks,
            held,
            time,
        } = self.case;
        let all = self.ours.0 + self.theirs.0;
        format!(
            "{kind} {ours}+{theirs} of {tasks}, {held:?}: theirs {:.2} of {:.0}/s, ours {:?}, longest wait ours {:?}, theirs {:?}",
            self.theirs.0 as f64 / all as f64,
            all as f64 / time.as_secs_f64(),
            self.each,
            self.ours.1,
            self.theirs.1,
        )
    }
}

async fn start(server: &Server, ours: usize, theirs: usize) -> (Vec<Client>, Vec<Redisson>) {
    let mut clients = Vec::new();
    for _ in 0..ours {
        clients.push(Client::connect(&server.url()).await.unwrap());
    }
    let mut java = join_all((0..theirs).map(|_| Redisson::start(server, LEASE))).await;
    for peer in &mut java {
        peer.obey("contend mutex warm 4 0 1500").await;
    }
    let permits = clients[0].leased_semaphore("permits");
    assert!(permits.try_set_permits(1).await.unwrap());
    let permits = clients[0].semaphore("semaphore");
    assert!(permits.try_set_permits(1).await.unwrap());
    (clients, java)
}

/// A case is tried three times: a machine that stalls gives a side less.
async fn shares(
    (clients, java): (&[Client], &mut [Redisson]),
    case: Case,
    slack: f64,
) -> Result<(), String> {
    let mut unfair = Vec::new();
    while unfair.len() < 3 {
        let shares = share(case, clients, java).await;
        println!("{}", shares.line());
        if shares.is_fair(slack) {
            return Ok(());
        }
        unfair.push(shares.line());
    }
    Err(unfair.join("\n"))
}

/// A debug build beside other tests. With `LEASEHOLD_FULL` the whole table, each side within a fifth of its share: for a release build on
/// a quiet machine.
#[tokio::test]
async fn each_side_has_its_share_by_the_number_of_processes() {
    let is_full = std::env::var_os("LEASEHOLD_FULL").is_some();
    let server = servers().remove(0);
    let most = if is_full { 3 } else { 2 };
    let (clients, mut java) = start(&server, most, most).await;
    let case = Case {
        kind: "mutex",
        ours: 2,
        theirs: 2,
        tasks: 3,
        held: Duration::from_micros(500),
        time: Duration::from_secs(if is_full { 3 } else { 1 }),
    };
    let mut wrong = Vec::new();
    if is_full {
        for kind in ["mutex", "fenced", "write", "permits", "semaphore"] {
            for (ours, theirs) in [(1, 1), (2, 2), (3, 1), (1, 3)] {
                for (held, tasks) in [0, 500, 1000]
                    .map(|held| [1, 3, 8].map(|tasks| (held, tasks)))
                    .concat()
                {
                    let held = Duration::from_micros(held);
                    let case = Case {
                        kind,
                        ours,
                        theirs,
                        tasks,
                        held,
                        ..case
                    };
                    wrong.extend(shares((&clients, &mut java), case, 0.2).await.err());
                }
            }
        }
    } else {
        for kind in ["mutex", "write", "permits"] {
            let case = Case { kind, ..case };
            wrong.extend(shares((&clients, &mut java), case, 0.6).await.err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    for client in &clients {
        wait_until_idle(client).await;
    }
}

/// Turns that none takes are left more and more seldom.
#[tokio::test]
async fn a_subscriber_that_never_takes_costs_at_most_a_fifth() {
    let server = servers().remove(0);
    let (clients, mut none) = start(&server, 2, 0).await;
    let case = Case {
        kind: "mutex",
        ours: 2,
        theirs: 0,
        tasks: 2,
        held: Duration::from_micros(500),
        time: Duration::from_secs(1),
    };
    let mut measured = Vec::new();
    while measured.len() < 3 {
        let alone = share(case, &clients, &mut none).await.ours.0;
        let mut foreign = server.connection();
        let mut foreign = foreign.as_pubsub();
        foreign.subscribe("redisson_lock__channel:{mutex}").unwrap();
        let beside = share(case, &clients, &mut none).await.ours.0;
        measured.push((alone, beside));
        if beside * 5 >= alone * 4 {
            return;
        }
    }
    panic!("holds alone, and beside such a subscriber: {measured:?}");
}
