//! Elections: who leads, under which value, and who hears of it. Troubles of whole processes: tests/trouble/election.rs.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::common::{World, int, keys, servers, soon, wire::Monitor};
use futures_util::future::join_all;
use leasehold::{
    Client, Election, ErrorKind, LeaderWatch, LostReason, MemoryServer, Owner, Released, Shutdown,
    Term,
};
use leasehold_testkit::wait_until_async;
use tokio::{sync::mpsc, time::Instant};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

async fn election(world: &World, value: &str) -> Election {
    world.client().await.election("scheduler").value(value)
}

/// Tokens stay.
fn is_held(world: &World) -> bool {
    world.held().iter().any(|name| name == "scheduler")
}

#[tokio::test]
async fn a_leader_is_told_with_its_value_until_it_resigns_or_is_dropped() {
    for world in World::all() {
        let client = world.builder().label("shop-7").connect().await.unwrap();
        let (one, other) = (client.election("scheduler"), election(&world, "two").await);
        assert_eq!(other.leader().await.unwrap(), None);

        let term = soon("the lead", one.campaign()).await.unwrap();
        assert!(term.is_valid() && !term.remaining().is_zero());
        let leader = other.leader().await.unwrap().unwrap();
        assert_eq!(
            leader.value, "shop-7",
            "the label, unless it says otherwise"
        );
        assert_eq!(leader.token, term.token());
        assert_eq!(leader.client, client.id());
        assert!(leader.remaining.unwrap() > 20 * SECOND);
        let since = leader.since.unwrap().elapsed().unwrap_or_default();
        assert!(since < 10 * SECOND, "{since:?}");

        assert_eq!(term.resign().await.unwrap(), Released::Freed);
        assert_eq!(one.leader().await.unwrap(), None);
        let second = soon("the lead", other.campaign()).await.unwrap();
        assert!(second.token() > leader.token);
        assert_eq!(one.leader().await.unwrap().unwrap().value, "two");

        // Dropped: the next leads at once, and no look sees the value of the one before.
        let next = one.campaign();
        drop(second);
        let third = soon("the lead", next).await.unwrap();
        assert_eq!(other.leader().await.unwrap().unwrap().token, third.token());
        let mutex = client.fenced_mutex("scheduler");
        assert!(mutex.try_lock().await.unwrap().is_none(), "one name");
        drop(third);
    }
}

/// Tokens are kept for seven days, and so is the value of a leader since it was last written.
#[tokio::test(start_paused = true)]
async fn a_leader_of_three_weeks_is_told_until_its_last_day() {
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    // Renewed a few thousand times in all.
    let election = client.election("scheduler").value("here");
    let election = election.lease(600 * SECOND);
    let term = election.campaign().await.unwrap();
    for _day in 0..21 {
        tokio::time::sleep(86_400 * SECOND).await;
        assert!(term.is_valid());
        assert_eq!(election.leader().await.unwrap().unwrap().value, "here");
    }
    term.resign().await.unwrap();
    assert!(election.leader().await.unwrap().is_none());
}

#[tokio::test]
async fn no_value_is_shown_for_the_leader_after_its_own() {
    for world in World::all() {
        let (client, other) = (world.client().await, world.client().await);
        let election = client.election("scheduler").value("old");
        for _ in 0..100 {
            drop(soon("the lead", election.campaign()).await.unwrap());
            // As a leader that was killed between its grant and its value.
            let next = soon("the name", other.fenced_mutex("scheduler").lock()).await;
            assert_eq!(election.leader().await.unwrap(), None);
            drop(next.unwrap());
        }
    }
}

#[tokio::test]
async fn a_bad_value_name_or_lease_is_refused_and_nothing_is_sent() {
    for world in World::all() {
        let client = world.client().await;
        let scheduler = client.election("scheduler");
        let long = "x".repeat(1025);
        for (election, words) in [
            (
                scheduler.value(&long),
                ["value", "1025 bytes", "1024", "keep the rest"],
            ),
            (
                scheduler.value("a\0b"),
                ["value", "a\\0b", "without a NUL", "say where"],
            ),
            (
                scheduler.lease(2 * MS),
                ["lease", "2ms", "at least 3ms", "longer"],
            ),
            (
                client.election(""),
                ["name", "empty", "at least 1 byte", "name the"],
            ),
        ] {
            let error = soon("the refusal", election.campaign()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            for word in words {
                assert!(error.to_string().contains(word), "{word:?} in {error}");
            }
            let ran = soon("the refusal", election.run(async |_| ())).await;
            assert_eq!(ran.unwrap_err().kind(), ErrorKind::Invalid);
        }
        let look = client.election("").leader().await.unwrap_err();
        assert_eq!(look.kind(), ErrorKind::Invalid);
        assert!(world.held().is_empty());
        let most = scheduler.value("x".repeat(1024));
        drop(soon("the lead", most.campaign()).await.unwrap());
    }
}

#[tokio::test]
async fn two_campaigns_of_one_owner_exclude_each_other() {
    for world in World::all() {
        let election = election(&world, "one").await;
        let campaigns = async {
            let term = soon("the lead", election.campaign()).await.unwrap();
            let second = tokio::time::timeout(100 * MS, election.campaign()).await;
            assert!(second.is_err(), "{}: entered", world.name());
            term.resign().await.unwrap();
        };
        Owner::new().scope(campaigns).await;
    }
}

/// Work that tells its terms, and whether it is there.
#[derive(Clone)]
struct Work {
    terms: mpsc::UnboundedSender<u64>,
    inside: Arc<AtomicUsize>,
}

struct Inside(Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Work {
    fn new() -> (Work, mpsc::UnboundedReceiver<u64>) {
        let (terms, told) = mpsc::unbounded_channel();
        let inside = Arc::default();
        (Work { terms, inside }, told)
    }

    async fn endless(self, token: u64) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two lead");
        let _inside = Inside(self.inside);
        self.terms.send(token).unwrap();
        pending::<()>().await;
    }
}

#[tokio::test]
async fn work_is_dropped_at_a_loss_and_begins_anew_in_the_next_term() {
    for world in World::all() {
        let (client, operator) = (world.client().await, world.client().await);
        // Short, so that the holder hears of the force soon.
        let election = client.election("scheduler").lease(300 * MS);
        let (work, mut told) = Work::new();
        let run = tokio::spawn(async move {
            let work = |term: Term| work.clone().endless(term.token());
            election.run(work).await
        });
        let mut last = 0;
        for _ in 0..3 {
            let token = soon("a term", told.recv()).await.unwrap();
            assert!(token > last);
            last = token;
            operator
                .fenced_mutex("scheduler")
                .force_unlock()
                .await
                .unwrap();
        }
        let token = soon("a term", told.recv()).await.unwrap();
        assert!(token > last);
        let next = operator.election("scheduler");
        let next = tokio::spawn(async move { next.campaign().await });
        client
            .shutdown(Shutdown::ReleaseAll {
                grace: Duration::ZERO,
            })
            .await;
        let ended = soon("the end", run).await.unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
        let next = soon("the next after a shutdown", next)
            .await
            .unwrap()
            .unwrap();
        assert!(next.token() > token);
    }
}

#[tokio::test]
async fn work_that_ends_gives_the_name_back_and_a_term_dropped_within_it_does_not() {
    for world in World::all() {
        let (one, other) = (election(&world, "one").await, election(&world, "two").await);
        let looks = other.clone();
        let work = async |term: Term| {
            let token = term.token();
            drop(term);
            let leader = looks.leader().await.unwrap();
            assert_eq!(leader.map(|leader| leader.token), Some(token));
            token
        };
        let token = soon("the work", one.run(work)).await.unwrap();
        assert_eq!(other.leader().await.unwrap(), None, "before `run` returns");
        // A term that is kept ends with the work all the same.
        let kept = soon("the work", one.run(async |term| term)).await.unwrap();
        assert!(!kept.is_valid() && kept.token() > token);
        let term = soon("the lead", other.campaign()).await.unwrap();
        assert_eq!(kept.resign().await.unwrap(), Released::Freed);
        assert!(term.is_valid());
    }
}

#[tokio::test]
async fn a_term_that_was_put_aside_ends_with_work_that_is_dropped_or_panics() {
    for world in World::all() {
        let (one, other) = (election(&world, "one").await, election(&world, "two").await);
        for panics in [false, true] {
            let (put, mut aside) = mpsc::unbounded_channel();
            let work = move |term: Term| {
                put.send(term).unwrap();
                async move {
                    assert!(!panics, "as it is told");
                    pending::<()>().await;
                }
            };
            let lead = one.clone();
            let run = tokio::spawn(async move { lead.run(work).await });
            let kept = soon("a term", aside.recv()).await.unwrap();
            let part = tokio::spawn(async move {
                let error = kept.run(pending::<()>()).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Lost);
                kept.lost().await
            });
            run.abort();
            let next = soon("the lead", other.campaign()).await.unwrap();
            let reason = soon("its part ends", part).await.unwrap();
            assert_eq!(reason, LostReason::Unconfirmed);
            drop(next);
        }
    }
}

#[tokio::test]
async fn an_observer_ends_with_its_client() {
    for world in World::all() {
        let client = world.client().await;
        let mut seen = client.election("scheduler").observe();
        assert!(seen.next().await.unwrap().is_none());
        let told = tokio::spawn(async move { seen.next().await });
        client.shutdown(Shutdown::LetExpire).await;
        let error = soon("an error", told).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
}

#[tokio::test]
async fn a_term_that_is_resigned_within_the_work_lets_the_next_lead_beside_the_rest_of_it() {
    for world in World::all() {
        let (one, other) = (election(&world, "one").await, election(&world, "two").await);
        let next = other.clone();
        let work = async |term: Term| {
            assert_eq!(term.resign().await.unwrap(), Released::Freed);
            soon("the lead", next.campaign()).await.unwrap()
        };
        let term = soon("the work", one.run(work)).await.unwrap();
        assert!(term.is_valid());
        let leader = one.leader().await.unwrap().unwrap();
        assert_eq!((leader.token, &*leader.value), (term.token(), "two"));
    }
}

#[tokio::test]
async fn a_term_hears_of_its_loss_and_drops_its_work() {
    for world in World::all() {
        let client = world.client().await;
        let election = client.election("scheduler");
        let term = soon("the lead", election.campaign()).await.unwrap();
        assert_eq!(term.run(async { 42 }).await.unwrap(), 42);
        let lose = async {
            client
                .fenced_mutex("scheduler")
                .force_unlock()
                .await
                .unwrap();
            pending::<()>().await;
        };
        let ran = soon("the loss", term.run(lose)).await;
        assert_eq!(ran.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(soon("the loss", term.lost()).await, LostReason::Replaced);
        assert!(!term.is_valid());
        assert_eq!(term.resign().await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test]
async fn a_campaign_that_is_dropped_leaves_nothing() {
    for world in World::all() {
        let (one, other) = (election(&world, "one").await, election(&world, "two").await);
        let term = soon("the lead", one.campaign()).await.unwrap();
        assert!(
            tokio::time::timeout(50 * MS, other.campaign())
                .await
                .is_err()
        );
        assert!(
            tokio::time::timeout(50 * MS, other.run(async |_| ()))
                .await
                .is_err()
        );
        term.resign().await.unwrap();
        wait_until_async(crate::common::SOON, "it is free", || !is_held(&world)).await;
        drop(soon("the lead", one.campaign()).await.unwrap());
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_the_value_is_asked_again() {
    let server = MemoryServer::new();
    let client = Client::builder().memory(&server).connect().await.unwrap();
    let election = client.election("scheduler").value("here");
    let term = soon("the lead", election.campaign()).await.unwrap();
    let next = tokio::spawn({
        let election = election.clone();
        async move { election.campaign().await }
    });
    // The release, the grant and the first of the value's writes are among them.
    server.drop_replies(4);
    drop(term);
    let next = soon("the lead", next).await.unwrap().unwrap();
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!((leader.token, &*leader.value), (next.token(), "here"));
}

#[tokio::test]
async fn a_fence_that_has_seen_a_number_that_is_no_token_is_told() {
    for world in World::all() {
        let client = world.client().await;
        let store = client.fenced_store("scheduler");
        store.set("data", "x", (1 << 53) - 1).await.unwrap();
        let election = client.election("scheduler");
        let error = soon("the refusal", election.campaign()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale);
        assert!(!is_held(&world), "{}: it was given back", world.name());
    }
}

/// On a clock that jumps: an observer sees each leader that lasts, and each gap, in order.
#[tokio::test(start_paused = true)]
async fn an_observer_sees_each_leader_that_lasts_and_each_gap_in_order() {
    let memory = World::Memory(MemoryServer::new());
    let (one, other) = (
        election(&memory, "one").await,
        election(&memory, "two").await,
    );
    let mut seen = one.observe();
    let observer = tokio::spawn(async move {
        let mut values = Vec::new();
        let mut looks = Vec::new();
        for _ in 0..7 {
            let leader = seen.next().await.unwrap();
            looks.push(Instant::now());
            values.push(leader.map(|leader| leader.value));
        }
        values
    });
    let sleep = tokio::time::sleep;
    sleep(5 * SECOND).await;
    for election in [&one, &other, &other] {
        let term = election.campaign().await.unwrap();
        sleep(5 * SECOND).await;
        term.resign().await.unwrap();
        sleep(5 * SECOND).await;
    }
    let two = || Some("two".to_owned());
    let (one, none) = (Some("one".to_owned()), || None);
    let all = vec![none(), one, none(), two(), none(), two(), none()];
    assert_eq!(observer.await.unwrap(), all);
}

#[tokio::test]
async fn an_observer_asks_once_in_two_seconds_and_keeps_its_distance_when_it_is_dropped() {
    for server in servers() {
        let client = Client::connect(&server.url()).await.unwrap();
        let term = client.election("scheduler").campaign().await.unwrap();
        // By then the server knows the script.
        for _ in 0..2 {
            client.election("scheduler").leader().await.unwrap();
        }
        let mut observers: Vec<_> = (0..4)
            .map(|_| client.election("scheduler").observe())
            .collect();
        let began = Instant::now();
        let first = join_all(observers.iter_mut().map(LeaderWatch::next)).await;
        assert!(
            first
                .iter()
                .all(|leader| leader.as_ref().unwrap().is_some())
        );
        // The looks alone: a client says other things besides.
        let mut sent = Monitor::start(&server);
        // Each is asked again and again, and dropped.
        while began.elapsed() < 3 * SECOND {
            let next = join_all(observers.iter_mut().map(LeaderWatch::next));
            assert!(tokio::time::timeout(150 * MS, next).await.is_err());
        }
        let asked = sent.calls(":leader").len() as u64;
        // Each has looked once before: a machine that stands still for a second makes it more than one look each.
        let most = 4 * (began.elapsed().as_secs() / 2);
        assert!(
            asked <= most,
            "{asked} looks of four, {most} at most: {:?}",
            sent.seen()
        );
        let looks = join_all(observers.iter_mut().map(LeaderWatch::next));
        let asked = || sent.calls(":leader").len() >= 4;
        tokio::select! {
            told = looks => panic!("no leader has changed: {told:?}"),
            () = wait_until_async(crate::common::SOON, "four looks", asked) => {}
        }
        drop(term);
    }
}

#[tokio::test]
async fn the_value_is_a_key_of_its_own_that_ends_and_is_deleted_by_a_resignation() {
    for server in servers() {
        let builder = Client::builder().url(server.url());
        let builder = builder
            .token_retention(Some(60 * SECOND))
            .name_prefix("test:");
        let client = builder.connect().await.unwrap();
        let election = client.election("scheduler").value("at 10.0.0.7:8080");
        let term = election.campaign().await.unwrap();
        let key = "leasehold:{test:scheduler}:leader";
        let text: String = redis::from_redis_value(server.cli(&["GET", key])).unwrap();
        let (owner, rest) = text.split_once(' ').unwrap();
        assert!(owner.starts_with(client.id()));
        assert_eq!(rest, format!("{} at 10.0.0.7:8080", term.token()));
        let left = int(&server, &["PTTL", key]);
        assert!((50_000..=60_000).contains(&left), "{left}");
        assert_eq!(
            election.leader().await.unwrap().unwrap().value,
            "at 10.0.0.7:8080"
        );
        term.resign().await.unwrap();
        assert!(!keys(&server).contains(&key.to_owned()));
        let what = "nothing waits";
        wait_until_async(crate::common::SOON, what, || client.footprint().queues == 0).await;
    }
}

/// Nobody else could lead during the grace, which is for holders that do not know that the client shuts down.
#[tokio::test]
async fn a_leader_ends_when_its_client_begins_to_shut_down_and_the_next_leads() {
    let grace = 20 * SECOND;
    for world in World::all() {
        let leads = world.client().await;
        let mut heard = leads.events();
        let dropped = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&dropped);
        let (begins, mut leads_now) = mpsc::unbounded_channel();
        let work = leads.election("scheduler").run(move |term: Term| {
            let (begins, counts) = (begins.clone(), Arc::clone(&counts));
            async move {
                let _counts = OnDrop(counts);
                begins.send(()).unwrap();
                let _term = term;
                pending::<()>().await;
            }
        });
        let run = tokio::spawn(work);
        leads_now.recv().await.unwrap();
        // The same by hand, by who looks, and by who keeps the term and does nothing.
        let by_hand = leads.election("by hand").campaign().await.unwrap();
        let put_aside = leads.election("put aside").campaign().await.unwrap();
        let other = world.client().await;
        let next = ["scheduler", "by hand", "put aside"]
            .map(|name| tokio::spawn(other.election(name).campaign()));

        let closes = leads.clone();
        let shut =
            tokio::spawn(async move { closes.shutdown(Shutdown::ReleaseAll { grace }).await });
        assert_eq!(
            soon("its end", by_hand.lost()).await,
            LostReason::ClientShutdown
        );
        assert!(!by_hand.is_valid());
        assert_eq!(by_hand.resign().await.unwrap(), Released::Freed);
        let ended = soon("the end of its work", run).await.unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        // `soon` is half of the grace.
        for next in next {
            drop(soon("the next leader", next).await.unwrap().unwrap());
        }
        assert!(!put_aside.is_valid());
        soon("the shutdown", shut).await.unwrap();
        while let Ok(event) = heard.try_recv() {
            let is_loss = matches!(event.kind, leasehold::EventKind::Lost { .. });
            assert!(!is_loss, "{}: {event:?}", world.name());
        }
    }
}

struct OnDrop(Arc<AtomicUsize>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
