use futures_util::FutureExt as _;
use leasehold_testkit::{Flavor, Server, wait_until};
use tokio::{runtime::Runtime, sync::oneshot};

use super::*;
use crate::{Client, ErrorKind, LostReason};

const LEASE: Duration = Duration::from_millis(600);
const SOON: Duration = Duration::from_secs(10);

/// A thread that ends when it is told to.
fn mortal() -> (BackgroundRuntime, oneshot::Sender<()>) {
    let (end, ended) = oneshot::channel();
    let thread = Thread::start(async {
        let _ = ended.await;
    });
    (BackgroundRuntime::Thread(Arc::new(thread.unwrap())), end)
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn there_is_one_thread_for_the_process() {
    let (BackgroundRuntime::Thread(one), BackgroundRuntime::Thread(other)) = (
        BackgroundRuntime::thread().unwrap(),
        BackgroundRuntime::thread().unwrap(),
    ) else {
        panic!("a thread")
    };
    assert!(Arc::ptr_eq(&one, &other));
    assert!(one.is_in_this_process());
}

#[test]
fn a_thread_of_another_process_is_none() {
    let BackgroundRuntime::Thread(thread) = BackgroundRuntime::thread().unwrap() else {
        panic!("a thread")
    };
    let forked = BackgroundRuntime::Thread(Arc::new(Thread {
        runtime: thread.runtime.clone(),
        alive: Arc::clone(&thread.alive),
        clients: Arc::default(),
        process: thread.process + 1,
    }));
    assert!(forked.check_process().is_err());
}

#[test]
fn a_timer_fires_although_the_runtime_that_polled_it_has_ended() {
    let time = Duration::from_millis(50);
    for background in [BackgroundRuntime::thread().unwrap(), {
        let stays = Box::leak(Box::new(one_thread()));
        stays.block_on(async { BackgroundRuntime::here() })
    }] {
        let began = Instant::now();
        let mut sleep = Box::pin(background.sleep(time));
        let first = one_thread();
        let polled = first.block_on(async { (&mut sleep).now_or_never() });
        assert!(polled.is_none());
        drop(first);
        one_thread().block_on(sleep);
        assert!(began.elapsed() >= time);
    }
}

/// No thread is left to give them the name.
#[test]
fn those_who_wait_when_the_thread_ends_are_answered() {
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let (background, end) = mortal();
        one_thread().block_on(async {
            let builder = Client::builder().url(server.url()).lease(LEASE);
            let client = builder.connect_at(|| Ok(background.clone())).await.unwrap();
            let other = Client::connect(&server.url()).await.unwrap();
            let _ours = client.mutex("ours").lock().await.unwrap();
            let _theirs = other.mutex("theirs").lock().await.unwrap();
            let waiting = ["ours", "theirs"].map(|name| tokio::spawn(client.mutex(name).lock()));
            while client.status("ours").await.unwrap().waiting_here != 1
                || client.footprint().waiting != 1
            {
                tokio::task::yield_now().await;
            }
            end.send(()).unwrap();
            for answer in waiting {
                let answer = tokio::time::timeout(SOON, answer).await.expect("it hangs");
                let error = answer.unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ThreadGone, "{flavor}: {error}");
            }
        });
    }
}

#[test]
fn a_timer_fires_although_its_thread_has_ended() {
    let (background, end) = mortal();
    let mut sleep = Box::pin(background.sleep(Duration::from_millis(50)));
    let runtime = one_thread();
    let polled = runtime.block_on(async { (&mut sleep).now_or_never() });
    assert!(polled.is_none());
    end.send(()).unwrap();
    wait_until(SOON, "it has ended", || background.check().is_err());
    runtime.block_on(async { tokio::time::timeout(SOON, sleep).await.unwrap() });
}

#[test]
fn a_thread_that_cannot_be_started_is_not_blamed_on_the_server() {
    let too_many = || Err(rustix::io::Errno::MFILE.into());
    let connect = Client::builder().connect_at(too_many);
    let error = one_thread().block_on(connect).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSent);
    let said = error.to_string();
    assert!(
        said.contains("ulimit") && !said.contains("server"),
        "{said}"
    );
}

#[test]
fn a_client_whose_thread_is_gone_says_so_and_its_guards_know_when_they_end() {
    for flavor in Flavor::available() {
        let server = Server::start(flavor);
        let (background, end) = mortal();
        one_thread().block_on(async {
            let builder = Client::builder().url(server.url()).lease(LEASE);
            let client = builder.connect_at(|| Ok(background.clone())).await.unwrap();
            let guard = client.mutex("order:42").lock().await.unwrap();
            end.send(()).unwrap();
            wait_until(SOON, "it has ended", || background.check().is_err());

            let error = client.mutex("order:43").lock().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ThreadGone);
            assert!(
                error.to_string().contains("connect a new client"),
                "{error}"
            );
            let error = client.status("order:42").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ThreadGone);

            let until = guard.valid_until();
            assert_eq!(guard.lost().await, LostReason::Expired);
            assert!(Instant::now() < until + Duration::from_millis(100));
            drop(guard);

            let again = Client::connect(&server.url()).await.unwrap();
            again
                .mutex("order:42")
                .lock()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        });
    }
}
