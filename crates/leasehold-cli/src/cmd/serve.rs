//! `leasehold serve`: a page of the locks, and metrics of them.
//!
//! [`guard`] lets requests in, [`live`] tells pages of locks, [`take`] takes one away, [`scrape`] is for Prometheus.

mod guard;
mod live;
mod scrape;
mod take;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    http::header,
    middleware,
    response::IntoResponse,
    routing::{get, post},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use leasehold::Client;
use tokio::{
    net::TcpListener,
    sync::{Notify, Semaphore, watch},
    time::sleep,
};

use crate::{
    args::Serve,
    ending::Ending,
    exit::{Exit, Failure},
    look::{
        board::Board,
        looker::{self, Looker, Shown},
    },
    output::{self, redact, visible},
    server,
};

/// Prometheus asks again within a minute, as a rule; until then the metrics are kept true.
const SCRAPED: Duration = Duration::from_secs(60);
/// A token is no shorter.
const TOKEN_LEAST: usize = 16;

/// Shared by all requests.
struct App {
    client: Client,
    /// Its address, without a user or a password.
    server: String,
    prefix: String,
    classes: Vec<String>,
    guard: guard::Guard,
    boards: watch::Receiver<Option<Arc<Board>>>,
    viewers: Mutex<Viewers>,
    /// The first viewer has come.
    wake: Arc<Notify>,
}

/// The reasons to look at the server.
#[derive(Default)]
struct Viewers {
    last: u64,
    /// The locks on each open page.
    pages: HashMap<u64, Vec<Shown>>,
    scraped: Option<Instant>,
}

impl Viewers {
    /// The locks on all pages; `None`: no page is open, and nothing is looked at.
    fn shown(&self) -> Option<Vec<Shown>> {
        let scraped = self.scraped.is_some_and(|at| at.elapsed() < SCRAPED);
        if self.pages.is_empty() && !scraped {
            return None;
        }
        let mut shown: Vec<Shown> = self.pages.values().flatten().cloned().collect();
        let key = |it: &Shown| (it.name.clone(), !it.is_alone);
        shown.sort_by_cached_key(key);
        shown.dedup_by(|one, before| one.name == before.name);
        Some(shown)
    }
}

impl App {
    fn viewers(&self) -> MutexGuard<'_, Viewers> {
        self.viewers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) async fn run(args: &Serve) -> Result<Exit, Failure> {
    let token = token(args)?;
    if token.is_none() && !args.listen.ip().is_loopback() {
        let message = format!(
            "--listen {} can be reached from other machines, and there is no --token: give one, or listen on 127.0.0.1",
            args.listen
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let address = args.server.address()?;
    let mut told = Ending::listen().map_err(|error| Failure::internal("hear signals", &error))?;
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        let message = format!("could not listen on {}: {error}", args.listen);
        Failure::new(Exit::Unreachable, message)
    })?;
    let client = tokio::select! {
        client = address.connect() => client?,
        exit = told.next() => return Ok(exit),
    };
    looker::try_out(&client, &args.pattern).await?;
    let at = listener
        .local_addr()
        .map_err(|error| Failure::internal("listen", &error))?;
    let unlock = args.allow_unlock.then(random_token).transpose()?;
    tell(at, token.is_some(), unlock.as_deref());
    let (sender, boards) = watch::channel(None);
    let app = Arc::new(App {
        client: client.clone(),
        server: visible(&redact(&address.url)),
        prefix: args.server.prefix()?,
        classes: args.class.clone(),
        guard: guard::Guard::new(token, unlock, args.host.clone()),
        boards,
        viewers: Mutex::default(),
        wake: Arc::default(),
    });
    let viewers = Arc::clone(&app);
    let shown = move || viewers.viewers().shown();
    let looker = Looker::new(client, &args.pattern);
    tokio::spawn(looker::keep_looking(
        looker,
        shown,
        Arc::clone(&app.wake),
        sender,
    ));
    tokio::select! {
        never = accept(&listener, router(&app)) => match never {},
        exit = told.next() => Ok(exit),
    }
}

/// Answers on so many connections at once; others wait for their turn.
const CONNECTIONS: usize = 200;
/// A request that takes longer to say is given up.
const HEADERS: Duration = Duration::from_secs(10);

async fn accept(listener: &TcpListener, router: Router) -> std::convert::Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        let Ok((stream, _)) = listener.accept().await else {
            // No file is left for it: one may be soon.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADERS);
        let service = TowerToHyperService::new(router.clone());
        let served = http.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            // How it ended matters to the other side.
            let _ = served.await;
            drop(place);
        });
    }
}

fn router(app: &Arc<App>) -> Router {
    let page = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, kind)], text).into_response() })
    };
    let data = Router::new()
        .route("/live", get(live::live))
        .route("/metrics", get(scrape::metrics))
        .layer(middleware::from_fn_with_state(
            Arc::clone(app),
            guard::token,
        ));
    Router::new()
        .route(
            "/",
            page("text/html; charset=utf-8", include_str!("serve/page.html")),
        )
        .route(
            "/page.css",
            page("text/css; charset=utf-8", include_str!("serve/page.css")),
        )
        .route(
            "/page.js",
            page(
                "text/javascript; charset=utf-8",
                include_str!("serve/page.js"),
            ),
        )
        .merge(data)
        // With its own token.
        .route("/unlock", post(take::unlock))
        .layer(middleware::from_fn_with_state(Arc::clone(app), guard::host))
        .with_state(Arc::clone(app))
}

/// Where the page is, on standard output: the first line that a script reads.
fn tell(at: SocketAddr, has_token: bool, unlock: Option<&str>) {
    let mut text = format!("the page is at http://{at}/, metrics at http://{at}/metrics");
    if has_token {
        text += "; both take the token";
    }
    output::say(&output::remark(&text));
    if let Some(unlock) = unlock {
        output::say(&output::remark(&format!(
            "locks may be taken away by http://{at}/#unlock={unlock}"
        )));
    }
}

fn token(args: &Serve) -> Result<Option<String>, Failure> {
    let token = match &args.token {
        Some(token) => Some(token.clone()),
        None => server::text_of_environment("LEASEHOLD_TOKEN", "--token")?,
    };
    let is_short = |token: &String| {
        let letters = token.bytes().filter(u8::is_ascii_graphic).count();
        letters != token.len() || letters < TOKEN_LEAST
    };
    if token.as_ref().is_some_and(is_short) {
        let message = format!(
            "a token must have at least {TOKEN_LEAST} letters, ASCII and without spaces: make one with openssl rand -hex 16"
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    Ok(token)
}

fn random_token() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Exit::Internal, format!("no random token: {error}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
