# pay out, as often as you like: it is counted as claimed once, and then as replayed
curl -i http://ADDRESS/merchants/shop/payouts -H 'Idempotency-Key: payout-1' \
    -H 'Content-Type: application/json' -d '{"amount_cents": 4900}'

# what Prometheus scrapes
curl http://ADDRESS/metrics
