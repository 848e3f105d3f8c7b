module sigs.k8s.io/kube-network-policies/tests/speed/bench/plots

go 1.26.6

require (
	gonum.org/v1/plot v0.17.0
	sigs.k8s.io/kube-network-policies v0.0.0-00010101000000-000000000000
)

require (
	codeberg.org/go-fonts/liberation v0.5.0 // indirect
	codeberg.org/go-latex/latex v0.2.0 // indirect
	codeberg.org/go-pdf/fpdf v0.11.1 // indirect
	git.sr.ht/~sbinet/gg v0.7.0 // indirect
	github.com/ajstarks/svgo v0.0.0-20211024235047-1546f124cd8b // indirect
	github.com/golang/freetype v0.0.0-20170609003504-e2365dfdc4a0 // indirect
	golang.org/x/image v0.30.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace sigs.k8s.io/kube-network-policies => ../../../..

replace sigs.k8s.io/kube-network-policies/tests/netpol => ../../../netpol
