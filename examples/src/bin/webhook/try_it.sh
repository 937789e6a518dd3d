# deliver an event as the provider does; deliver it again, with a new signature: it counts once
body='{"id":"evt_1","attempt":1,"data":{"type":"payment.succeeded","invoice":"inv_1","amount_cents":4900}}'
time=$(date +%s)
signature=$(printf '%s.%s' "$time" "$body" | openssl dgst -sha256 -hmac SECRET | sed 's/.*= //')
curl -i http://ADDRESS/webhooks/payments -H "Webhook-Signature: t=$time,v1=$signature" -d "$body"
