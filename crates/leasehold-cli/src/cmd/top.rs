//! `leasehold top`: the locks of a server, live.

mod screen;
mod view;

use std::{
    io::{self, IsTerminal as _},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{Notify, watch};

use self::{
    screen::{Input, Screen},
    view::{Does, View},
};
use crate::{
    args::Top,
    ending::Ending,
    exit::{Exit, Failure},
    look::{
        board::{Board, Wanted},
        looker::{self, Looker},
        table,
    },
    output::{self, redact, visible},
};

pub(crate) async fn run(args: &Top) -> Result<Exit, Failure> {
    let address = args.server.address()?;
    let client = address.connect().await?;
    looker::try_out(&client, &args.pattern).await?;
    let mut looker = Looker::new(client, &args.pattern);
    let wanted = Wanted {
        sort: args.sort,
        ..Wanted::default()
    };
    let is_live = !args.once && io::stdout().is_terminal() && io::stdin().is_terminal();
    if is_live {
        let server = visible(&redact(&address.url));
        let title = format!("leasehold top {}", visible(&args.pattern));
        return watch(looker, View::new(title, server, wanted)).await;
    }
    let board = looker.look_at_all().await?;
    output::print(&once(&board, &wanted))?;
    match board.trouble {
        // Of a node of a cluster: the rest is there.
        Some(trouble) => Err(Failure::new(Exit::Unreachable, trouble)),
        None => Ok(Exit::Done),
    }
}

/// The list and its summary, as text.
fn once(board: &Board, wanted: &Wanted) -> String {
    let rows = board.rows(wanted);
    let summary = view::summary(board) + "\n";
    if rows.is_empty() {
        return summary;
    }
    table::text(&rows, &|lock| board.held_for(lock), table::columns()) + &summary
}

/// Draws until it is told to end.
async fn watch(looker: Looker, mut view: View) -> Result<Exit, Failure> {
    let failed = |error: io::Error| Failure::internal("draw on the terminal", &error);
    let mut told = Ending::listen().map_err(|error| Failure::internal("hear signals", &error))?;
    let (boards, mut board) = watch::channel(None);
    let shown = Arc::new(Mutex::new(Vec::new()));
    let names = Arc::clone(&shown);
    let names = move || Some(names.lock().unwrap_or_else(PoisonError::into_inner).clone());
    // The server is asked beside the screen, which stays as quick as its keys.
    let wake = Arc::new(Notify::new());
    tokio::spawn(looker::keep_looking(looker, names, wake, boards));
    let mut screen = Screen::open().map_err(failed)?;
    let mut input = Input::listen();
    loop {
        let now = board.borrow_and_update().clone();
        let names = screen.draw(&mut view, now.as_deref()).map_err(failed)?;
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = names;
        let does = tokio::select! {
            changed = board.changed() => match changed {
                Ok(()) => Does::GoesOn,
                Err(_) => Does::Ends,
            },
            event = input.next() => match event {
                Some(event) => view.hear(&event, now.as_deref()),
                // The terminal is gone.
                None => Does::Ends,
            },
            exit = told.next() => return Ok(exit),
        };
        if does == Does::Ends {
            return Ok(Exit::Done);
        }
    }
}
