//! A way to the server that can be cut: what is sent then is lost, and no connection is closed, as by a cable that is pulled.

use std::future::pending;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub(super) struct Network {
    port: u16,
    cut: watch::Sender<bool>,
}

/// The parts of an address that leads to one server without TLS: up to its host, `host:port`, and the rest.
fn parts(url: &str) -> Option<(&str, String, &str)> {
    let begin = url
        .find("://")
        .filter(|at| ["redis", "valkey"].contains(&&url[..*at]))?
        + 3;
    let end = url[begin..]
        .find(['/', '?'])
        .map_or(url.len(), |at| begin + at);
    let host = url[begin..end]
        .rfind('@')
        .map_or(begin, |at| begin + at + 1);
    let given = &url[host..end];
    let has_port = given
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let server = match (given, has_port) {
        ("", _) => "127.0.0.1:6379".to_owned(),
        (_, true) => given.to_owned(),
        (_, false) => format!("{given}:6379"),
    };
    Some((&url[..host], server, &url[end..]))
}

impl Network {
    /// To the server at this address; `None`: to such an address it cannot lead.
    pub(super) async fn to(url: &str) -> Option<Network> {
        let (_, server, _) = parts(url)?;
        let listener = TcpListener::bind("127.0.0.1:0").await.ok()?;
        let port = listener.local_addr().ok()?.port();
        let (cut, is_cut) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, server.clone(), is_cut.clone()));
            }
        });
        Some(Network { port, cut })
    }

    /// The same address, by this way.
    pub(super) fn url(&self, url: &str) -> Option<String> {
        let (begin, _, rest) = parts(url)?;
        Some(format!("{begin}127.0.0.1:{}{rest}", self.port))
    }

    pub(super) fn cut(&self) {
        self.cut.send_replace(true);
    }
}

/// Until it is cut; from then on the socket is open, and silent.
async fn carry(mut near: TcpStream, server: String, mut is_cut: watch::Receiver<bool>) {
    let carried = async {
        let mut far = TcpStream::connect(server).await?;
        copy_bidirectional(&mut near, &mut far).await
    };
    let cut = async { is_cut.wait_for(|is_cut| *is_cut).await.is_ok() };
    tokio::select! {
        biased;
        // Or the drill has ended, and its network with it.
        _ = cut => pending().await,
        _ = carried => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_led_through_whatever_stands_around_its_host() {
        for (url, found) in [
            ("redis://cache/", Some(("redis://", "cache:6379", "/"))),
            (
                "redis://u:p@s@cache:7000/3",
                Some(("redis://u:p@s@", "cache:7000", "/3")),
            ),
            ("valkey://[::1]:7000", Some(("valkey://", "[::1]:7000", ""))),
            ("redis://", Some(("redis://", "127.0.0.1:6379", ""))),
            ("rediss://cache/", None),
            ("redis-cluster://a,b/", None),
            ("unix:///run/redis.sock", None),
        ] {
            let found = found.map(|(begin, server, rest)| (begin, server.to_owned(), rest));
            assert_eq!(parts(url), found, "{url}");
        }
    }
}
