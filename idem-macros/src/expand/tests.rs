//! What the attribute turns whole functions into.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};
use proptest::prelude::*;
use quote::{ToTokens, quote};
use syn::{File, Item, ItemFn, Meta};

use super::expand;

/// Lines that an expansion may have beyond the user's own function.
const MOST_LINES_ADDED: usize = 80;

/// `name.rs` is a function with the attribute, `name.expanded.rs` what becomes of it. Set `UPDATE_EXPANSIONS` to write
/// the latter.
#[test]
fn expansions_are_as_written_down_and_short() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expansions");
    let mut cases: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|case| !case.to_string_lossy().ends_with(".expanded.rs"));
    cases.sort();
    assert!(cases.len() >= 10, "the cases must be found");
    for case in cases {
        let (function, expansion) = expand_file(&case);
        let written_down = case.with_extension("expanded.rs");
        if std::env::var_os("UPDATE_EXPANSIONS").is_some() {
            fs::write(&written_down, &expansion).unwrap();
        }
        let expected = fs::read_to_string(&written_down).unwrap_or_default();
        assert_eq!(expansion, expected, "the expansion of {} changed", case.display());
        let added = expansion.lines().count().saturating_sub(function.lines().count());
        assert!(added <= MOST_LINES_ADDED, "{}: {added} lines beyond the user's function", case.display());
    }
}

/// The function of a file without the attribute, and its expansion; both prettyprinted.
fn expand_file(case: &Path) -> (String, String) {
    let file: File = syn::parse_str(&fs::read_to_string(case).unwrap()).unwrap();
    let Some(Item::Fn(mut function)) = file.items.into_iter().next() else { panic!("a case is a function") };
    let position = function.attrs.iter().position(|attribute| attribute.path().is_ident("idempotent")).unwrap();
    let Meta::List(options) = function.attrs.remove(position).meta else { panic!("a case has options") };
    let expansion = expand(options.tokens, function.to_token_stream());
    (pretty(function.into_token_stream()), pretty(expansion))
}

fn pretty(tokens: TokenStream) -> String {
    prettyplease::unparse(&syn::parse2(tokens).unwrap())
}

/// The text of every `compile_error!`.
fn mistakes(expansion: &TokenStream) -> Vec<String> {
    let file: File = syn::parse2(expansion.clone()).unwrap();
    let messages = file.items.into_iter().filter_map(|item| match item {
        Item::Macro(call) if call.mac.path.segments.last()?.ident == "compile_error" => {
            Some(call.mac.parse_body::<syn::LitStr>().unwrap().value())
        }
        _ => None,
    });
    messages.collect()
}

fn mistakes_in(expansion: &str) -> usize {
    expansion.matches("compile_error").count()
}

/// What an editor needs in order to complete: the user's tokens, in place, in a function of the right signature.
#[test]
fn a_half_typed_body_expands_with_its_tokens_in_place() {
    for body in [
        quote!({ let order = ; new. }),
        quote!({ sqlx::query("INSERT").bind(new. ).fetch_one() }),
        quote!({ match new.total { 1 => , _ } }),
        quote!({ if tenant.id == { Ok() }}),
        quote!({ unknown_name.unknown_method(). }),
        quote!({ let x: Vec< = op.step("a" .) }),
    ] {
        let item =
            quote!(async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Answer #body);
        let expansion = expand(quote!(scope = tenant.id, ttl = "24h"), item).to_string();
        let kept = quote!(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>).to_string();
        assert!(expansion.contains(&format!("{kept}) -> Answer {body}")), "{expansion}");
        // What is not yet typed cannot use `tx`.
        let mistakes = mistakes_in(&expansion);
        assert!(mistakes <= 1, "{expansion}");
        assert!(expansion.contains(". transaction (move | tx |"), "{expansion}");
    }
}

/// While an option is being typed, the function stays.
#[test]
fn a_half_typed_attribute_keeps_the_function() {
    let item = quote!(
        async fn create_order(tenant: Tenant, tx: &mut Tx) -> StatusCode {
            save(tx).await
        }
    );
    for attribute in [
        quote!(),
        quote!(sc),
        quote!(scope),
        quote!(scope =),
        quote!(scope = tenant.),
        quote!(scope = tenant., ttl = "24h"),
        quote!(scope = tenant.id, ttl = ),
        quote!(scope = tenant.id, ttl = "24h", allow()),
        quote!(scope = tenant.id, ttl = "24h", state = ),
        quote!(scope = tenant.id, ttl = "24h", ,),
    ] {
        let expansion = expand(attribute.clone(), item.clone());
        assert!(!mistakes(&expansion).is_empty(), "{attribute}");
        let body = quote!({ save(tx).await }).to_string();
        assert!(expansion.to_string().contains(&body), "{attribute}: {expansion}");
    }
}

#[test]
fn every_mistake_of_a_function_is_reported_at_once() {
    let expansion = expand(
        quote!(scope = tennant.id, ttl = "24", in_flght = "reject", failures = "reply"),
        quote! {
            fn create_order(tenant: Tenant, tx: Tx, id: i64, State(pool): State<PgPool>) -> Body {
                sqlx::query("COMMIT")
            }
        },
    );
    let mistakes = mistakes(&expansion);
    for part in ["async", "in_flght", "&mut Tx", "`id`", "PgPool", "Body", "COMMIT", "tennant", "`24`", "failures"] {
        assert!(mistakes.iter().any(|mistake| mistake.contains(part)), "{part} is missing in {mistakes:#?}");
    }
    assert!(mistakes.iter().any(|mistake| mistake.contains("nothing here is written")), "{mistakes:#?}");
    assert_eq!(mistakes.len(), 11, "{mistakes:#?}");
}

/// Words and marks that mean something to the attribute, and some that do not.
const VOCABULARY: &[&str] = &[
    "scope",
    "ttl",
    "key",
    "header",
    "optional",
    "global",
    "in_flight",
    "failures",
    "lease",
    "isolation",
    "fingerprint",
    "state",
    "allow",
    "pool",
    "crate",
    "async",
    "fn",
    "pub",
    "const",
    "unsafe",
    "extern",
    "mut",
    "ref",
    "self",
    "where",
    "impl",
    "dyn",
    "struct",
    "trait",
    "mod",
    "tx",
    "op",
    "Tx",
    "Operation",
    "Idempotency",
    "PgPool",
    "State",
    "Json",
    "Path",
    "T",
    "i64",
    "main",
    "query",
    "query_as",
    "execute",
    "commit",
    "rollback",
    "step",
    "transaction",
    "cfg",
    "cfg_attr",
    "doc",
    "idempotent",
    "debug_handler",
    "utoipa",
    "path",
    "_",
    "r#type",
];
const MARKS: &[char] = &['=', ',', '.', ':', ';', '&', '<', '>', '#', '!', '|', '?', '-', '+', '*', '@', '\'', '$'];
const TEXTS: &[&str] =
    &["24h", "", "0s", "wait 2s", "wait", "-1h", "COMMIT", "a; ROLLBACK", "serializable", "{tenant}", "ä💥"];

fn arbitrary_token() -> impl Strategy<Value = TokenTree> {
    let leaf = prop_oneof![
        proptest::sample::select(VOCABULARY).prop_map(|word| match word.strip_prefix("r#") {
            Some(raw) => Ident::new_raw(raw, Span::call_site()).into(),
            None => Ident::new(word, Span::call_site()).into(),
        }),
        (proptest::sample::select(MARKS), any::<bool>()).prop_map(|(mark, joint)| Punct::new(
            mark,
            if joint { Spacing::Joint } else { Spacing::Alone }
        )
        .into()),
        proptest::sample::select(TEXTS).prop_map(|text| Literal::string(text).into()),
        any::<u64>().prop_map(|number| Literal::u64_unsuffixed(number).into()),
        any::<f64>()
            .prop_filter("finite", |number| number.is_finite())
            .prop_map(|number| Literal::f64_suffixed(number.abs()).into()),
        any::<char>().prop_map(|character| Literal::character(character).into()),
        any::<Vec<u8>>().prop_map(|bytes| Literal::byte_string(&bytes).into()),
    ];
    leaf.prop_recursive(4, 48, 8, |inner| {
        let delimiter = prop_oneof![
            Just(Delimiter::Parenthesis),
            Just(Delimiter::Brace),
            Just(Delimiter::Bracket),
            Just(Delimiter::None)
        ];
        (delimiter, proptest::collection::vec(inner, 0..8))
            .prop_map(|(delimiter, tokens)| Group::new(delimiter, tokens.into_iter().collect()).into())
    })
}

fn arbitrary_tokens() -> impl Strategy<Value = TokenStream> {
    proptest::collection::vec(arbitrary_token(), 0..24).prop_map(|tokens| tokens.into_iter().collect())
}

/// A valid stream in which one token, at any depth, is removed, doubled or replaced.
fn damaged(valid: TokenStream) -> impl Strategy<Value = TokenStream> {
    (any::<proptest::sample::Index>(), 0..3_u8, arbitrary_token()).prop_map(move |(position, kind, other)| {
        let mut left = position.index(count(&valid));
        damage(valid.clone(), &mut left, kind, &other)
    })
}

fn count(tokens: &TokenStream) -> usize {
    let counts = tokens.clone().into_iter().map(|token| match token {
        TokenTree::Group(group) => 1 + count(&group.stream()),
        _ => 1,
    });
    counts.sum()
}

fn damage(tokens: TokenStream, left: &mut usize, kind: u8, other: &TokenTree) -> TokenStream {
    let mut result = TokenStream::new();
    for token in tokens {
        let is_damaged = *left == 0;
        *left = left.wrapping_sub(1);
        match (is_damaged, kind) {
            (true, 0) => {}
            (true, 1) => result.extend([token.clone(), token]),
            (true, _) => result.extend([other.clone()]),
            (false, _) => match token {
                TokenTree::Group(group) => {
                    let inside = damage(group.stream(), left, kind, other);
                    result.extend([TokenTree::from(Group::new(group.delimiter(), inside))]);
                }
                token => result.extend([token]),
            },
        }
    }
    result
}

fn valid_attribute() -> TokenStream {
    quote! {
        scope = (tenant.id, format!("{tenant}")), ttl = "1h 30m", key = event.id, in_flight = "wait 2s",
        failures = "replay", lease = "60s", isolation = "serializable", fingerprint = event.total, state = AppState,
        allow(pool), crate = ::idem_runtime
    }
}

fn valid_item() -> TokenStream {
    quote! {
        /// Handles an event.
        #[cfg_attr(docsrs, doc(cfg(feature = "a")))]
        #[axum::debug_handler]
        pub(crate) async fn on_event(
            tenant: Tenant,
            #[cfg(a)] State(AppState { ref pool, .. }): State<AppState>,
            tx: &mut Tx,
            #[cfg(b)] Json(mut event): Json<Event>,
        ) -> Result<(StatusCode, Json<Order>), ApiError>
        where
            Tenant: Send,
        {
            let order = sqlx::query_as::<_, Order>("INSERT INTO a VALUES ($1); SELECT 1").fetch_one(&mut *tx).await?;
            op.step("charge", async |key| charge(key)).await
        }
    }
}

/// Code without `compile_error!` is code that compiles as far as tokens go.
fn assert_total(attribute: TokenStream, item: TokenStream) {
    let is_function = syn::parse2::<ItemFn>(item.clone()).is_ok();
    let expansion = expand(attribute, item);
    assert!(!expansion.is_empty());
    if is_function && !expansion.to_string().contains("compile_error") {
        syn::parse2::<File>(expansion).expect("the expansion of a valid function must parse");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_tokens_never_panic(attribute in arbitrary_tokens(), item in arbitrary_tokens()) {
        assert_total(attribute, item);
    }

    #[test]
    fn a_damaged_attribute_never_panics(attribute in damaged(valid_attribute())) {
        assert_total(attribute, valid_item());
    }

    #[test]
    fn a_damaged_function_never_panics(item in damaged(valid_item())) {
        assert_total(valid_attribute(), item);
    }

    #[test]
    fn any_text_is_no_duration_or_one_within_the_limits(text in ".*") {
        if let Ok(duration) = super::duration::parse(&text) {
            assert!(!duration.is_zero() && duration.as_secs() <= 365 * 86_400);
        }
    }

    #[test]
    fn sql_behind_any_comment_is_found(comment in "[^\\r\\n*/]*", command in "(COMMIT|rollback|Begin|END)") {
        assert!(super::body::transaction_command(&format!("/*{comment}*/ -- {comment}\n{command}")).is_some());
    }
}
