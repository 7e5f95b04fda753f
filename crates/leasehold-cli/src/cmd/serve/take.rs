//! Takes a lock away from the holder that a page has shown.

use std::sync::Arc;

use axum::{
    Json,
    extract::{State, rejection::JsonRejection},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use clap::ValueEnum as _;
use leasehold::Error;
use serde::Deserialize;
use serde_json::json;

use super::{App, guard::refusal};
use crate::{
    cmd::status::document,
    kinds::{self, Kind},
    look::table,
    output::{self, redact},
};

#[derive(Deserialize)]
pub(super) struct Asked {
    name: String,
    kind: String,
    /// The owners that were shown: by now another may have it, or read beside them.
    owners: Vec<String>,
}

pub(super) async fn unlock(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    asked: Result<Json<Asked>, JsonRejection>,
) -> Response {
    if let Some(refused) = app.guard.refuses_unlock(&headers) {
        return refused;
    }
    let asked = match asked {
        Ok(Json(asked)) => asked,
        Err(rejection) => return refusal(rejection.status(), &rejection.body_text()),
    };
    match take(&app, &asked).await {
        Ok(response) => response,
        Err(error) => refusal(status_of(&error), &redact(&error.to_string())),
    }
}

fn status_of(error: &Error) -> StatusCode {
    match error {
        Error::Invalid { .. } => StatusCode::BAD_REQUEST,
        // Another kind of lock has the name by now.
        error if kinds::is_of_another_kind(error) => StatusCode::CONFLICT,
        _ => StatusCode::BAD_GATEWAY,
    }
}

async fn take(app: &App, asked: &Asked) -> Result<Response, Error> {
    let Ok(kind) = Kind::from_str(&asked.kind, false) else {
        return Ok(refusal(
            StatusCode::BAD_REQUEST,
            "there is no such kind of lock",
        ));
    };
    if !kind.has_owners() {
        let why = "its permits, or its count, go all at once: use leasehold unlock --force";
        return Ok(refusal(StatusCode::BAD_REQUEST, why));
    }
    let seen = kind.status(&app.client, &asked.name).await?;
    if seen.holders.is_empty() {
        return Ok(refusal(StatusCode::NOT_FOUND, "it is free by now"));
    }
    let is_meant = seen
        .holders
        .iter()
        .all(|holder| asked.owners.contains(&holder.owner));
    if is_meant && app.client.force_unlock_if(&seen).await? {
        // The server keeps no record of it.
        let from = seen.holders.iter().map(|it| table::holder(&seen, it));
        let from = from.collect::<Vec<_>>().join(", ");
        output::say(&output::remark(&format!(
            "{} was taken away from {from} by the page",
            seen.name
        )));
        return Ok(Json(json!({ "taken": true })).into_response());
    }
    let holder = document(&kind.status(&app.client, &asked.name).await?);
    let body = json!({ "error": "it has another holder by now", "holder": holder["holder"] });
    Ok((StatusCode::CONFLICT, Json(body)).into_response())
}
