use idem_client::{Client, FileJournal, Key, ResponseExt as _};

/// One client for the whole process; `.stripe()` on the builder retries what Stripe's own SDKs retry.
fn client(journal: &std::path::Path) -> Result<Client, Box<dyn std::error::Error>> {
    let journal = FileJournal::open(journal)?;
    Ok(Client::builder().journal(journal).status_url("/status/{key}").build()?)
}

/// Places an order, and says what became of it.
async fn place(client: &Client, url: &str, order_id: i64) -> String {
    // The key is derived from the operation: the same after a restart.
    let key = Key::of("place-order", &order_id);
    let request = client.post(url).key(&key).form(&[("product", "gift"), ("quantity", "1")]);
    match request.send().await {
        // The operation's own answer, on whichever attempt. A refusal of the operation is one too.
        Ok(answer) if answer.settled() => format!("answered {}", answer.status()),
        // An answer that does not tell what became of an attempt before it, or of the key: the order is still pending.
        // Mend the cause (for a 401, the token), and send it again with the same key.
        Ok(answer) => format!("answered {}, and it may have happened", answer.status()),
        // Nothing final came back. The error says what to ask.
        Err(error) if error.may_have_happened() => format!("it may have happened: {error}"),
        Err(error) => format!("it has not happened: {error}"),
    }
}
