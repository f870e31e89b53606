# What docker-compose.yml's service `certificates` does at each start. The volume at /tls holds the CA, the keys that sign
# tokens and what they made, and no other service mounts it. Each volume below /nodes is one node's, or that of clients.
set -eu
test -e /tls/ca.pem || shoal tls init /tls
test -e /tls/tokens || shoal token init /tls/tokens
rm -f /tls/client.new
shoal token create /tls/tokens compose --allow '*:admin,impersonate' --lasts 1d --out /tls/client.new
mv /tls/client.new /tls/client.token

# Replaced in one step, since a node may read it now; left alone if it is the same.
hand() {
    cmp -s "$1" "$2" || { cp -p "$1" "$2.new" && mv "$2.new" "$2"; }
}
for place in /nodes/*; do
    test -w "$place" || continue  # Of the image, whose file system is read-only: no volume is mounted there.
    name=${place##*/}
    hand /tls/ca.pem "$place/ca.pem"
    hand /tls/client.token "$place/client.token"
    test "$name" != client || continue
    test -e "/tls/$name" || shoal tls node /tls "$name${ALIAS:+,$ALIAS}"
    hand "/tls/$name/key.pem" "$place/key.pem"
    hand "/tls/$name/cert.pem" "$place/cert.pem"
    hand /tls/tokens/keys.json "$place/keys.json"
done
