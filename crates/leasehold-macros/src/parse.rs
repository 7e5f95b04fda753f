//! The brackets of `#[locked(…)]`: a name as for `format!`, then options. Each mistake is told at its token.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{
    Error, Expr, ExprLit, Ident, Lit, LitStr, Result, Token,
    ext::IdentExt,
    parse::{Parse, ParseStream},
    spanned::Spanned,
};

/// The word of each option, and an example of it.
const OPTIONS: [(&str, &str); 12] = [
    ("wait", "wait = \"5s\""),
    ("lease", "lease = \"15s\""),
    ("fixed_lease", "fixed_lease = \"15s\""),
    ("max_hold", "max_hold = \"10m\""),
    ("once_per", "once_per = \"1h\""),
    ("kind", "kind = fenced"),
    ("client", "client = self.locks"),
    ("guard", "guard = g"),
    ("busy", "busy = Ok(None)"),
    ("failed", "failed = |error| …"),
    ("reentrant", "reentrant"),
    ("blocking", "blocking"),
];

/// The kinds, each with the marker of its guard in the library.
const KINDS: [(&str, &str); 7] = [
    ("mutex", "Exclusive"),
    ("fenced", "Fenced"),
    ("fair", "Fair"),
    ("read", "Read"),
    ("write", "Write"),
    ("plain", "Plain"),
    ("spin", "Spin"),
];

/// The brackets.
pub(crate) struct Options {
    /// The arguments of `format!`: the text and its values.
    pub(crate) name: TokenStream,
    pub(crate) wait: Option<TokenStream>,
    pub(crate) lease: Option<TokenStream>,
    pub(crate) fixed_lease: Option<TokenStream>,
    pub(crate) max_hold: Option<TokenStream>,
    /// With the place of the word.
    pub(crate) once_per: Option<(TokenStream, Span)>,
    /// The marker of the kind's guard.
    pub(crate) kind: Ident,
    pub(crate) client: Option<Expr>,
    pub(crate) guard: Option<Ident>,
    pub(crate) busy: Option<Expr>,
    pub(crate) failed: Option<Expr>,
    pub(crate) reentrant: bool,
    pub(crate) blocking: Option<Span>,
}

/// The options that were named, for those that may not stand together.
struct NamedOptions(Vec<(&'static str, Span)>);

impl NamedOptions {
    fn add(&mut self, option: &'static str, at: Span) -> Result<()> {
        if self.at(option).is_some() {
            return Err(Error::new(
                at,
                format!("`{option}` is said twice; leave one of them out"),
            ));
        }
        self.0.push((option, at));
        Ok(())
    }

    fn at(&self, option: &str) -> Option<Span> {
        self.0
            .iter()
            .find(|(said, _)| *said == option)
            .map(|(_, at)| *at)
    }

    /// Refuses the later of two options that contradict each other.
    fn not_both(&self, one: &str, other: &str, why: &str) -> Result<()> {
        let place = |option| self.0.iter().position(|(said, _)| *said == option);
        let (Some(first), Some(second)) = (place(one), place(other)) else {
            return Ok(());
        };
        let (later, earlier) = if first > second {
            (one, other)
        } else {
            (other, one)
        };
        let at = self.0[first.max(second)].1;
        Err(Error::new(
            at,
            format!("`{later}` does not go with `{earlier}`: {why}"),
        ))
    }
}

impl Parse for Options {
    fn parse(input: ParseStream) -> Result<Self> {
        let text = name(input)?;
        let shown = text.value();
        let mut name = text.into_token_stream();
        let mut options = Options::new();
        let mut said = NamedOptions(Vec::new());
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let value_follows = input.peek(Ident::peek_any)
                && input.peek2(Token![=])
                && !input.peek2(Token![==])
                && !input.peek2(Token![=>]);
            if value_follows {
                let word = input.call(Ident::parse_any)?;
                if let Some(option) = known(&word) {
                    said.add(option, word.span())?;
                    let equals: Token![=] = input.parse()?;
                    options.value(option, &word, equals, input)?;
                } else if mentions(&shown, &word.to_string()) {
                    // A value of `format!`'s that has a name.
                    let (equals, value): (Token![=], Expr) = (input.parse()?, input.parse()?);
                    name.extend(quote!(, #word #equals #value));
                } else {
                    return Err(unknown(&word));
                }
                continue;
            }
            let ahead = input.fork();
            let bare = ahead.call(Ident::parse_any).ok();
            let ends = ahead.is_empty() || ahead.peek(Token![,]);
            match bare.as_ref().map(ToString::to_string).as_deref() {
                Some("reentrant") if ends => {
                    said.add("reentrant", input.call(Ident::parse_any)?.span())?;
                    options.reentrant = true;
                }
                Some("blocking") if ends => {
                    let at = input.call(Ident::parse_any)?.span();
                    said.add("blocking", at)?;
                    options.blocking = Some(at);
                }
                _ => {
                    let value: Expr = input.parse()?;
                    name.extend(quote!(, #value));
                }
            }
        }
        options.check(&said)?;
        options.name = name;
        Ok(options)
    }
}

impl Options {
    fn new() -> Options {
        Options {
            name: TokenStream::new(),
            wait: None,
            lease: None,
            fixed_lease: None,
            max_hold: None,
            once_per: None,
            kind: Ident::new("Exclusive", Span::mixed_site()),
            client: None,
            guard: None,
            busy: None,
            failed: None,
            reentrant: false,
            blocking: None,
        }
    }

    fn value(
        &mut self,
        option: &'static str,
        word: &Ident,
        equals: Token![=],
        input: ParseStream,
    ) -> Result<()> {
        if input.is_empty() || input.peek(Token![,]) {
            let example = example(option);
            return Err(Error::new(
                equals.span(),
                format!("`{option}` has no value; as in `{example}`"),
            ));
        }
        match option {
            "wait" => self.wait = Some(duration(option, input)?),
            "lease" => self.lease = Some(duration(option, input)?),
            "fixed_lease" => self.fixed_lease = Some(duration(option, input)?),
            "max_hold" => self.max_hold = Some(duration(option, input)?),
            "once_per" => self.once_per = Some((duration(option, input)?, word.span())),
            "kind" => self.kind = kind(input)?,
            "client" => self.client = Some(input.parse()?),
            "guard" => self.guard = Some(guard(input)?),
            "busy" => self.busy = Some(input.parse()?),
            "failed" => self.failed = Some(input.parse()?),
            _ => {
                let why =
                    format!("`{option}` has no value; write `{option}` alone, or leave it out");
                return Err(Error::new(word.span(), why));
            }
        }
        Ok(())
    }

    fn check(&self, said: &NamedOptions) -> Result<()> {
        said.not_both(
            "lease",
            "fixed_lease",
            "the one is renewed, the other is not; choose one",
        )?;
        for length in ["lease", "fixed_lease", "max_hold"] {
            said.not_both(
                length,
                "once_per",
                "the name is taken for the interval, or for as long as the work takes",
            )?;
        }
        said.not_both("wait", "once_per", "it asks once, and does not wait")?;
        if let Some(at) = said.at("busy")
            && self.wait.is_none()
            && self.once_per.is_none()
        {
            let why = "`busy` is for a call that ends its wait: say `wait = \"5s\"`, or `wait = \"0s\"` to ask once; without one it waits as long as it takes";
            return Err(Error::new(at, why));
        }
        said.not_both(
            "guard",
            "once_per",
            "no guard is handed to the work; use `run_once_per` around a lock of its own",
        )?;
        said.not_both(
            "reentrant",
            "once_per",
            "a call inside has run in this interval already",
        )?;
        if let (Some(at), false) = (
            said.at("kind").filter(|_| said.at("once_per").is_some()),
            ["Exclusive", "Fenced", "Plain"]
                .iter()
                .any(|kind| self.kind == kind),
        ) {
            let why = "`once_per` is for the kinds mutex, fenced and plain";
            return Err(Error::new(at, why));
        }
        Ok(())
    }
}

/// The text of the name, which comes first.
fn name(input: ParseStream) -> Result<LitStr> {
    const REMEDY: &str = "the name of the lock comes first, as a text: `#[locked(\"order:{id}\")]`; for a constant, `#[locked(\"{}\", NAME)]`";
    if input.is_empty() {
        return Err(Error::new(Span::call_site(), REMEDY));
    }
    if !input.peek(LitStr) {
        return Err(Error::new(input.span(), REMEDY));
    }
    let text: LitStr = input.parse()?;
    if text.value().is_empty() {
        return Err(Error::new(
            text.span(),
            "a lock needs a name, as in `#[locked(\"order:{id}\")]`",
        ));
    }
    if !input.is_empty() && !input.peek(Token![,]) {
        return Err(Error::new(
            input.span(),
            "a comma goes between the name and what follows",
        ));
    }
    Ok(text)
}

fn known(word: &Ident) -> Option<&'static str> {
    OPTIONS
        .iter()
        .map(|(option, _)| *option)
        .find(|option| word == option)
}

fn example(option: &str) -> &'static str {
    OPTIONS
        .iter()
        .find(|(known, _)| *known == option)
        .map_or("", |(_, example)| example)
}

fn unknown(word: &Ident) -> Error {
    let said = word.to_string();
    let names = OPTIONS.map(|(option, _)| option);
    let meant = match &*said {
        "timeout" => Some("wait"),
        "ttl" | "lease_time" => Some("lease"),
        _ => nearest(&said, &names),
    };
    let advice = match meant {
        Some(option) => format!("did you mean `{}`?", example(option)),
        None => format!("there are {}", listed(&names)),
    };
    Error::new(
        word.span(),
        format!("`{said}` is no option of `#[locked]`; {advice}"),
    )
}

/// Whether the text of a name has braces with this word in them, or takes a width from it.
fn mentions(text: &str, word: &str) -> bool {
    text.split('{').skip(1).any(|rest| {
        let within = rest.split('}').next().unwrap_or_default();
        let (value, form) = within.split_once(':').unwrap_or((within, ""));
        let mut counts = form.split('$').rev().skip(1);
        value == word || counts.any(|before| before.ends_with(word))
    })
}

/// A text with a unit, or an expression that the compiler takes for a `Duration`.
fn duration(option: &str, input: ParseStream) -> Result<TokenStream> {
    let value: Expr = input.parse()?;
    let mut plain = &value;
    // A `macro_rules!` hands its expressions on in groups.
    while let Expr::Group(group) = plain {
        plain = &group.expr;
    }
    let Expr::Lit(ExprLit { lit, .. }) = plain else {
        let span = value.span();
        let name = Ident::new("duration", Span::mixed_site());
        // Its type is said here, so that the compiler complains at the value.
        return Ok(quote_spanned!(span=> { let #name: ::core::time::Duration = #value; #name }));
    };
    let wrong = |why: &str| {
        let sentence = format!(
            "`{option}` is a time with its unit, as \"5s\", \"200ms\" or \"1h 30m\", or a `Duration`; {why}"
        );
        Error::new(lit.span(), sentence)
    };
    let Lit::Str(text) = lit else {
        let said = lit.to_token_stream();
        return Err(match lit {
            Lit::Int(_) | Lit::Float(_) => wrong(&format!("{said} has no unit")),
            _ => wrong(&format!("{said} is neither")),
        });
    };
    let said = text.value();
    let Ok(time) = humantime::parse_duration(said.trim()) else {
        return Err(wrong(&format!("{said:?} cannot be read")));
    };
    let (seconds, nanos) = (time.as_secs(), time.subsec_nanos());
    Ok(quote_spanned!(text.span()=> ::core::time::Duration::new(#seconds, #nanos)))
}

fn kind(input: ParseStream) -> Result<Ident> {
    let names = KINDS.map(|(kind, _)| kind);
    let at = input.span();
    let value: Expr = input.parse()?;
    let said = value.to_token_stream().to_string();
    if let Some((_, marker)) = KINDS.iter().find(|(kind, _)| *kind == said) {
        return Ok(Ident::new(marker, Span::mixed_site()));
    }
    let advice = match nearest(&said, &names) {
        Some(kind) => format!("did you mean `kind = {kind}`?"),
        None => format!("there are {}", listed(&names)),
    };
    Err(Error::new(
        at,
        format!("`{said}` is no kind of lock; {advice}"),
    ))
}

fn guard(input: ParseStream) -> Result<Ident> {
    let at = input.span();
    let wrong = || {
        Error::new(
            at,
            "`guard` is followed by the name that the body has for its guard, as in `guard = g`",
        )
    };
    let name: Ident = input.parse().map_err(|_| wrong())?;
    if !input.is_empty() && !input.peek(Token![,]) {
        return Err(wrong());
    }
    Ok(name)
}

fn listed(names: &[&str]) -> String {
    let (last, rest) = names.split_last().expect("a table has rows");
    format!("{} and {last}", rest.join(", "))
}

/// The name that is meant, if one is a slip of the hand away.
fn nearest<'a>(said: &str, names: &[&'a str]) -> Option<&'a str> {
    let near = names
        .iter()
        .map(|name| (distance(said, name), *name))
        .min()?;
    (near.0 <= 2 && near.0 < said.chars().count()).then_some(near.1)
}

/// How many letters must be added, dropped or changed to make the one of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (down, c) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = down + 1;
        for (across, d) in other.iter().enumerate() {
            let changed = diagonal + usize::from(c != *d);
            diagonal = row[across + 1];
            row[across + 1] = changed.min(row[across] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}
