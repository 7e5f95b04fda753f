//! Who may ask: by host, origin and token.

use std::{net::IpAddr, sync::Arc};

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::App;

/// The page needs no more: its own files, and its own server. Names from the server are text, and never run.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) struct Guard {
    token: Option<String>,
    unlock: Option<String>,
    hosts: Vec<String>,
}

impl Guard {
    pub(super) fn new(token: Option<String>, unlock: Option<String>, hosts: Vec<String>) -> Guard {
        Guard {
            token,
            unlock,
            hosts,
        }
    }

    pub(super) fn may_unlock(&self) -> bool {
        self.unlock.is_some()
    }

    /// Whether a browser that asks this host can only mean this server. Any name may be made to lead here (DNS rebinding), and a page of that name
    /// would count as ours; an address may not.
    fn knows(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let name = authority.host();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.is_given(host)
    }

    /// Whether a page of another server asks. Browsers send the origin with each POST, and with requests to others; a program that is none may leave it out.
    fn is_foreign(&self, headers: &HeaderMap) -> bool {
        let Some(origin) = headers.get(header::ORIGIN) else {
            return false;
        };
        let origin = origin.to_str().ok().and_then(|it| it.split_once("://"));
        let host = headers.get(header::HOST).and_then(|it| it.to_str().ok());
        // Behind a proxy the request's own host may be another.
        !origin.is_some_and(|(_, origin)| Some(origin) == host || self.is_given(origin))
    }

    fn is_given(&self, host: &str) -> bool {
        let name = host.parse::<Authority>();
        let is_it = |it: &String| {
            let name = name.as_ref().map(Authority::host).unwrap_or_default();
            name.eq_ignore_ascii_case(it) || host.eq_ignore_ascii_case(it)
        };
        self.hosts.iter().any(is_it)
    }

    /// Why a lock may not be taken away by this request; `None`: it may.
    pub(super) fn refuses_unlock(&self, headers: &HeaderMap) -> Option<Response> {
        if self.is_foreign(headers) {
            return Some(refusal(
                StatusCode::FORBIDDEN,
                "the request comes from a page of another origin",
            ));
        }
        let Some(unlock) = &self.unlock else {
            return Some(refusal(
                StatusCode::FORBIDDEN,
                "this page only shows locks: it was started without --allow-unlock",
            ));
        };
        let given = headers.get("x-leasehold-token").map(HeaderValue::as_bytes);
        if !given.is_some_and(|given| is_same(given, unlock.as_bytes())) {
            return Some(refusal(
                StatusCode::UNAUTHORIZED,
                "the token for taking locks away is missing, or another: leasehold serve has printed it at its start",
            ));
        }
        None
    }
}

/// In a time that does not tell how many bytes are right.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differ = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differ == 0
}

pub(super) fn refusal(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}

/// Of each request, and of each answer.
pub(super) async fn host(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    let mut response = if host.is_some_and(|host| app.guard.knows(host)) {
        next.run(request).await
    } else {
        refusal(
            StatusCode::FORBIDDEN,
            "the Host of the request is not one of this server; say --host for its other names",
        )
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Of what tells of locks.
pub(super) async fn token(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    // A browser that asks for a page of another site: it would not show the answer, but the server would be looked at.
    let site = request.headers().get("sec-fetch-site");
    let foreign = site.is_some_and(|site| site == "cross-site" || site == "same-site");
    if foreign || app.guard.is_foreign(request.headers()) {
        return refusal(
            StatusCode::FORBIDDEN,
            "the request comes from a page of another site",
        );
    }
    if let Some(token) = &app.guard.token {
        let given = request.headers().get(header::AUTHORIZATION);
        let given = given.and_then(|given| given.as_bytes().strip_prefix(b"Bearer "));
        if !given.is_some_and(|given| is_same(given, token.as_bytes())) {
            let mut response =
                refusal(StatusCode::UNAUTHORIZED, "the token is missing, or another");
            let bearer = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, bearer);
            return response;
        }
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_name_is_no_host_of_ours() {
        let guard = Guard::new(None, None, vec!["locks.example.org".to_owned()]);
        for (host, knows) in [
            ("127.0.0.1:7480", true),
            ("[::1]:7480", true),
            ("localhost", true),
            ("LOCKS.example.org:443", true),
            ("evil.example.org", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example:7480", false),
            ("locks.example.org.evil", false),
            ("", false),
            ("a b", false),
        ] {
            assert_eq!(guard.knows(host), knows, "{host}");
        }
    }
}
