//! A request with an `Idempotency-Key` is carried out once: sent again, it gets the answer of the first, and while the first runs, 409.

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header::RETRY_AFTER},
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::Shop;

/// The longest answer that is kept.
const ANSWER_MOST: usize = 64 * 1024;

/// To be laid around routes with [`axum::middleware::from_fn_with_state`].
///
/// The lock keeps two requests with one key apart, in whichever processes they are. The answer is kept in the database, and what was refused for now (503) is
/// not, so that it may be tried again. A process that dies between its sale and its answer keeps none, and one that lost its lock goes on: a
/// shop that must not sell twice even then writes the key in the transaction of the sale. Keys are the buyers' own: a shop with logins
/// puts the buyer in front of the key.
pub async fn once(State(shop): State<Shop>, request: Request, next: Next) -> Response {
    let key = match key(request.headers()) {
        Ok(Some(key)) => key,
        Ok(None) => return next.run(request).await,
        Err(refused) => return refused.into_response(),
    };
    let mutex = shop.client.mutex(format!("idempotency:{key}"));
    let guard = match mutex.try_lock().await {
        Ok(Some(guard)) => guard,
        Ok(None) => {
            let wait = [(RETRY_AFTER, "1")];
            return (StatusCode::CONFLICT, wait, "the first one runs").into_response();
        }
        Err(error) => return crate::unavailable(error).into_response(),
    };
    // A task of its own: a caller that hangs up gives the lock back no earlier than the work ends.
    let work = tokio::spawn(async move {
        let answer = match shop.stock.answer(&key) {
            Ok(Some((status, body))) => (status, body).into_response(),
            Ok(None) => keep(&shop, &key, next.run(request).await).await,
            Err(error) => crate::unavailable(error).into_response(),
        };
        drop(guard);
        answer
    });
    let answer = work.await;
    answer.unwrap_or_else(|panic| crate::unavailable(panic).into_response())
}

fn key(headers: &HeaderMap) -> Result<Option<String>, (StatusCode, &'static str)> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    // It becomes part of a lock's name.
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    match key.to_str() {
        Ok(text) if (1..=64).contains(&text.len()) && text.as_bytes().iter().all(is_plain) => {
            Ok(Some(text.to_owned()))
        }
        _ => Err((
            StatusCode::BAD_REQUEST,
            "an Idempotency-Key has 1 to 64 letters, digits, - and _",
        )),
    }
}

async fn keep(shop: &Shop, key: &str, answer: Response) -> Response {
    if answer.status().is_server_error() {
        return answer;
    }
    let (parts, body) = answer.into_parts();
    let body = match to_bytes(body, ANSWER_MOST).await {
        Ok(body) => body,
        Err(error) => return crate::unavailable(error).into_response(),
    };
    if let Err(error) = shop.stock.keep_answer(key, parts.status, &body) {
        eprintln!("the answer to {key} is not kept: {error}");
    }
    Response::from_parts(parts, Body::from(body))
}
